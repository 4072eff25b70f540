"""What the gateway logged, read back."""
