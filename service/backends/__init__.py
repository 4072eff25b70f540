"""What runs the models."""
