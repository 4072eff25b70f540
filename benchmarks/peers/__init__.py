"""Each peer's server, written as its documentation says."""
