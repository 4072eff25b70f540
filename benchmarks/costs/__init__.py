"""What one mechanism of the gateway costs."""
