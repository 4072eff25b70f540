"""What is written down of a run while it trains, and where it can be followed."""
