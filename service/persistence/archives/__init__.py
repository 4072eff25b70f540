"""The model store: what its manifest lists, and verified copies of its archives."""
