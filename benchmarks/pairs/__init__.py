"""Two checkouts against each other on one machine, in short alternating turns."""
