"""A run as tables, targets and plots."""
