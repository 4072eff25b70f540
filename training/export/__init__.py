"""From the trained network to files that run without its source: compiled, exported, compared."""
