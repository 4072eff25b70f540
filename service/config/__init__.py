"""What the settings are, and the places that they come from."""
