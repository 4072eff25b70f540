"""The models and images that are served."""
