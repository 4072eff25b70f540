"""Networks, the graph that is served, and weights with their sidecar."""
