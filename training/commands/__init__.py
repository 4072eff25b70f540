"""The stages as verbs of the command line, a family of them in each module."""
