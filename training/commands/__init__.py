"""The verbs of the command line, and what starts a training in several processes."""
