"""What an operator does to the state's database: back it up and restore it."""
