"""Which rows a run measures, in which order, and what it keeps of them."""
