"""The systems under test: torchgate, and the servers that it stands beside."""
