"""The HTTP edge, one file per family of routes."""
