"""TorchServe's error messages and their meaning: it has no codes for them.

tests/service/backends/torchserve/test_failures.py gets each message from a real TorchServe, over REST and over gRPC.
"""

from service.errors.gateway import BackendError, BackendFailed, BackendUnavailable, WorkerDied

# A part of the message -> the error. The statuses tell less: over REST these are 404, 500 and 503, and over gRPC a
# handler's exception is UNAVAILABLE, like a server that is not there.
MESSAGES: tuple[tuple[str, type[BackendUnavailable | BackendFailed]], ...] = (
    ("Worker died", WorkerDied),
    ("Prediction failed", BackendFailed),  # the handler raised
    ("has no worker to serve inference request", BackendUnavailable),  # none is ready, or TorchServe's queue is full
    ("Model not found", BackendUnavailable),
    ("does not exist for model", BackendUnavailable),  # another version of it is registered
)


def failure(text: str, otherwise: type[BackendUnavailable | BackendFailed] = BackendFailed) -> BackendError:
    """Return the error that TorchServe's message means; `otherwise` if the table does not have it."""
    return next((error(text) for message, error in MESSAGES if message in text), otherwise(text))
