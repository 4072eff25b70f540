"""Batching: requests wait in a queue, batches are formed from it and sent to the backend, answers go back."""
