"""TorchServe's error messages and their meaning: it has no codes for them.

tests/end_to_end/test_backends.py gets each message from a real TorchServe, over REST and over gRPC.
"""

from service.errors.gateway import BackendError, BackendFailed, BackendUnavailable, WorkerDied

# A part of the message -> the error. Over REST these come as 404, 500 or 503, over gRPC as INTERNAL, NOT_FOUND or
# RESOURCE_EXHAUSTED; neither code tells them apart.
MESSAGES: tuple[tuple[str, type[BackendUnavailable]], ...] = (
    ("Worker died", WorkerDied),
    ("has no worker to serve inference request", BackendUnavailable),  # none is ready, or TorchServe's queue is full
    ("Model not found", BackendUnavailable),
    ("does not exist for model", BackendUnavailable),  # another version of it is registered
)


def failure(text: str) -> BackendError:
    """Return the error that TorchServe's message means."""
    return next((error(text) for message, error in MESSAGES if message in text), BackendFailed(text))
