"""Values and protocols, without I/O."""
