"""Python client of torchgate: predictions, feedback, versions, traffic and guarded rollouts."""

from torchgate_client import codes
from torchgate_client.answers import (
    Answer,
    ClassProbability,
    Event,
    FailedPrediction,
    Feedback,
    Guard,
    Model,
    Prediction,
    Rollout,
    Shadow,
    Timing,
    Traffic,
    Version,
)
from torchgate_client.async_client import AsyncClient
from torchgate_client.client import Client
from torchgate_client.errors import (
    BadAnswer,
    GatewayProblem,
    Overloaded,
    RequestRefused,
    TorchgateError,
    Unavailable,
    Unreachable,
)
from torchgate_client.images import Image

__all__ = [
    "Answer",
    "AsyncClient",
    "BadAnswer",
    "ClassProbability",
    "Client",
    "Event",
    "FailedPrediction",
    "Feedback",
    "GatewayProblem",
    "Guard",
    "Image",
    "Model",
    "Overloaded",
    "Prediction",
    "RequestRefused",
    "Rollout",
    "Shadow",
    "Timing",
    "TorchgateError",
    "Traffic",
    "Unavailable",
    "Unreachable",
    "Version",
    "codes",
]
