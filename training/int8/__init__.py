"""Integers instead of floats, three ways."""
