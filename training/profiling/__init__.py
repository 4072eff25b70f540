"""Where the time goes: of a served version, and of the input pipeline."""
