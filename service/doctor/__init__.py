"""What `torchgate check` looks at before a start: the gateway's surroundings, each with the next step."""
