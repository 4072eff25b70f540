"""What one row of the table measures."""
