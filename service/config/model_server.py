"""What runs the models, and where."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field


class ModelServerSettings(BaseModel):
    """What runs the models, and where."""

    backend: Literal["grpc", "rest", "workers"] = Field(
        "grpc",
        description="How batches reach the model: TorchServe over gRPC or REST, or workers that the gateway runs "
        "itself.",
    )
    worker_python: str | None = Field(
        None, description="Backend `workers`: Python with torchserve for the workers. Unset is the gateway's own."
    )
    threads_per_worker: int = Field(1, ge=1, le=256, description="Backend `workers`: threads of each worker.")
    worker_max_bytes: int = Field(
        0,
        ge=0,
        description="Backend `workers`: memory above which a worker is replaced. 0 is half the machine's memory, "
        "divided by the number of workers.",
    )
    torchserve_host: str = Field("127.0.0.1", description="Host that TorchServe runs on.")
    torchserve_grpc_port: int = Field(7070, ge=1, le=65535, description="TorchServe's gRPC inference port.")
    torchserve_rest_port: int = Field(8080, ge=1, le=65535, description="TorchServe's REST inference port.")
    torchserve_management_port: int = Field(8081, ge=1, le=65535, description="TorchServe's management port.")
    torchserve_management_socket: Path | None = Field(
        None,
        description="Unix socket of TorchServe's management API, used instead of host and port. `make serve` and "
        "compose set it.",
    )
    backend_timeout_ms: int = Field(30_000, ge=1, description="Longest wait for the answer to one batch.")
    load_timeout_seconds: float = Field(120, gt=0, description="Longest wait for a version to load and warm up.")
    health_interval_seconds: float = Field(1, gt=0, le=60, description="Pause between two health checks of TorchServe.")
