"""The search of options: which values are tried, and the study that tries them."""
