"""The error tree, drawn at the top of gateway.py."""
