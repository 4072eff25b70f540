"""Where settings come from: flags, the environment and a file."""
