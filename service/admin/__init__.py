"""What an operator does."""
