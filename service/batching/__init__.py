"""From a request's images to batches and back."""
