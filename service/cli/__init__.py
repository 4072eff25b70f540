"""The operator's side of the `torchgate` command: a client of the gateway's own HTTP API."""
