"""What the environment says, read once."""
