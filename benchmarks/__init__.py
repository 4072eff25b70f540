"""What torchgate can do beside its peers, on one machine: `make bench`; and its best settings there: `make tune`."""
