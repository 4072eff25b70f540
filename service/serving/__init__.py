"""Model versions, and which one answers a request."""
