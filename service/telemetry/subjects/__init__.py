"""The metrics of one subject each; metrics.py has them all."""
