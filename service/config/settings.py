"""Every option of the gateway, once: name, default, unit, help, bounds and cross-checks."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.config.clients import ClientsInvalid, read_clients
from service.config.environment import (
    PREFIX,
    env_name,
    require_collector,
    require_folder,
    require_parquet,
    require_trusted_keys,
    require_worker_python,
    with_secrets,
)
from service.config.identity import IdentitySettings
from service.config.model_server import ModelServerSettings
from service.config.network import NetworkSettings
from service.config.objectives import Objectives
from service.config.state import StateSettings
from service.config.store import ModelStoreSettings

MEBIBYTE = 1024 * 1024
MOST_IMAGES = 10_000  # prediction ids, which hold a class for each, must fit into a body of POST /feedback
# The fastest alert means 14.4 times the allowed share: with less than this it could not go off if all requests failed.
LEAST_OBJECTIVE = 0.94
STATE_FILE = "torchgate.db"
SECRETS = frozenset({"admin_token", "api_keys", "database_url"})  # never shown


class Settings(ModelServerSettings, StateSettings, ModelStoreSettings, IdentitySettings, NetworkSettings, BaseSettings):
    """The gateway's options, frozen; what is not given comes from the environment (`TORCHGATE_<NAME>`).

    `service.config.places` gives them what flags, the environment and `torchgate.toml` say.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True, allow_inf_nan=False
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log level that is shown."
    )

    slow_request_ms: int = Field(
        1000,
        ge=0,
        description="Predictions slower than this are logged as warnings with their timings, at most 10 a second. "
        "The time counts from the complete body; 0 logs none.",
    )
    tracing: Literal["off", "otlp"] = Field(
        "off",
        description="Where spans go: nowhere, or to an OpenTelemetry collector (OTLP over gRPC; needs the extra "
        "`tracing`).",
    )
    tracing_endpoint: str = Field(
        "http://127.0.0.1:4317",
        description="Address of the collector: `http://host:port`, or `https://host:port` for TLS.",
    )
    tracing_sample_ratio: float = Field(
        1,
        ge=0,
        le=1,
        description="Share of requests that are traced. A trusted proxy's `traceparent` overrides it.",
    )

    prediction_log_dir: Path | None = Field(
        None,
        description="Folder of the prediction log: Parquet files with the answers. Unset keeps no log. Needs the "
        "extra `prediction-log`.",
    )
    prediction_log_sample: float = Field(1, gt=0, le=1, description="Share of requests that are logged.")
    prediction_log_max_bytes: int = Field(
        1024 * MEBIBYTE, ge=MEBIBYTE, description="Largest total size of the log's files; the oldest are deleted first."
    )
    prediction_log_inputs: Literal["none", "hash", "image"] = Field(
        "none", description="What the log keeps of the images: nothing, their SHA-256, or the hash and all bytes."
    )
    drift_window_items: int = Field(
        1000,
        ge=100,
        le=1_000_000,
        multiple_of=10,
        description="Number of a version's last images that are compared with the reference in its contract. The "
        "comparison starts at a fifth of them.",
    )
    drift_class_threshold: float = Field(
        0.1,
        gt=0,
        description="Population stability index of the predicted classes above which a version drifts. The noise "
        "level, which chance alone rarely exceeds, replaces it if it is higher.",
    )
    drift_confidence_threshold: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Kolmogorov-Smirnov distance of the confidences above which a version drifts. The noise level, "
        "which chance alone rarely exceeds, replaces it if it is higher.",
    )

    latency_objective_ms: int = Field(
        100, ge=1, description="Target time for one image; it limits the size of batches."
    )
    slo_latency_ms: int | None = Field(
        None,
        ge=1,
        description="Time within which an answer counts as fast, for alerts. Unset is TORCHGATE_LATENCY_OBJECTIVE_MS.",
    )
    slo_latency_ratio: float = Field(
        0.99, ge=LEAST_OBJECTIVE, lt=1, description="Share of answers that should be fast."
    )
    slo_availability_ratio: float = Field(
        0.999,
        ge=LEAST_OBJECTIVE,
        lt=1,
        description="Share of requests that should be answered, client errors excluded.",
    )
    max_batch_size: int = Field(
        32, ge=1, le=1024, description="Largest number of images in one batch, whatever the objective."
    )
    # Less than the largest request that handlers/torchserve.properties allows.
    max_batch_bytes: int = Field(
        64 * MEBIBYTE,
        ge=1,
        le=120 * MEBIBYTE,
        description="Largest size of a batch's images together. A single image may be larger.",
    )
    max_queue_items: int = Field(1024, ge=1, description="Largest number of queued images, per version.")
    max_queue_bytes: int = Field(256 * MEBIBYTE, ge=1, description="Largest total size of queued images, per version.")

    max_buffered_bytes: int = Field(
        512 * MEBIBYTE,
        ge=2,
        description="Memory for the request bodies of all callers. One caller may take at most as much as is "
        "still free: half of it, if it is alone.",
    )
    max_body_bytes: int = Field(32 * MEBIBYTE, ge=1, description="Largest request body.")
    max_images: int = Field(256, ge=1, le=MOST_IMAGES, description="Largest number of images in one request.")
    body_timeout_seconds: float = Field(30, gt=0, description="Longest time for a request body to arrive.")
    deadline_ms: int = Field(10_000, ge=1, description="Deadline of a request without X-Deadline-Ms.")
    max_deadline_ms: int = Field(60_000, ge=1, description="Largest X-Deadline-Ms that is accepted.")

    @property
    def state_url(self) -> str:
        """Return where the state is kept."""
        return self.database_url or f"sqlite:///{self.model_store.absolute() / STATE_FILE}"

    @property
    def model_server(self) -> tuple[str, int | Path]:
        """Return host and port, or socket, that name the model server; embedded workers go by their gateway's port."""
        if self.backend == "workers":
            return "localhost", self.port
        if self.torchserve_management_socket is not None:
            return "localhost", self.torchserve_management_socket
        return self.torchserve_host, self.torchserve_management_port

    @property
    def objectives(self) -> Objectives:
        """Return what the alerts compare with."""
        latency_ms = self.slo_latency_ms or self.latency_objective_ms
        return Objectives(latency_ms / 1000, self.slo_latency_ratio, self.slo_availability_ratio)

    @model_validator(mode="before")
    @classmethod
    def _read_secrets(cls, given: dict[str, Any]) -> dict[str, Any]:
        return with_secrets(given, sorted(SECRETS))

    @model_validator(mode="after")
    def _has_room_for_a_body(self) -> Self:
        if self.max_buffered_bytes < 2 * self.max_body_bytes:
            raise ValueError(
                f"{env_name('max_buffered_bytes')}={self.max_buffered_bytes} must be at least twice "
                f"{env_name('max_body_bytes')}={self.max_body_bytes}: one caller may take half of it"
            )
        return self

    @model_validator(mode="after")
    def _cross_check(self) -> Self:
        for smaller, larger in (
            ("workers_per_version", "max_workers_per_version"),
            ("max_images", "max_queue_items"),
            ("max_body_bytes", "max_batch_bytes"),
            ("max_batch_bytes", "max_queue_bytes"),
            ("deadline_ms", "max_deadline_ms"),
        ):
            if getattr(self, smaller) > getattr(self, larger):
                raise ValueError(
                    f"{env_name(smaller)}={getattr(self, smaller)} must not exceed "
                    f"{env_name(larger)}={getattr(self, larger)}"
                )
        if self.trusted_keys_dir is not None:
            require_trusted_keys(self.trusted_keys_dir, self.model_store)
        if self.clients_file is not None:
            try:
                read_clients(self.clients_file)
            except ClientsInvalid as error:
                raise ValueError(f"{env_name('clients_file')}={error}") from None
        elif self.reads_need_key and not self.keys:
            raise ValueError(
                f"{env_name('reads_need_key')}=true, but there are no keys; set {env_name('clients_file')} or "
                f"{env_name('api_keys')}"
            )
        if self.verified_archives_dir is not None:
            if self.verified_archives_dir.resolve() == self.model_store.resolve():
                given = f"{env_name('verified_archives_dir')}={self.verified_archives_dir}"
                raise ValueError(f"{given}: it must be another folder than {env_name('model_store')}")
            require_folder("verified_archives_dir", self.verified_archives_dir, is_private=True)
        if self.backend == "workers":
            require_worker_python(self.worker_python)
        if self.prediction_log_dir is not None:
            require_parquet(self.prediction_log_dir)
            require_folder("prediction_log_dir", self.prediction_log_dir)
            if self.prediction_log_inputs == "image" and self.prediction_log_max_bytes < 2 * self.max_body_bytes:
                raise ValueError(
                    f"{env_name('prediction_log_max_bytes')}={self.prediction_log_max_bytes} must be at least twice "
                    f"{env_name('max_body_bytes')}={self.max_body_bytes} where images are logged"
                )
        if self.tracing == "otlp":
            require_collector(self.tracing_endpoint)
        return self


def explain(error: ValidationError) -> str:
    """Return one line per wrong setting: its variable, what was given and what is allowed."""
    lines = []
    for fault in error.errors():
        if fault["loc"]:
            name = env_name(str(fault["loc"][0]))
            given = "(secret)" if fault["loc"][0] in SECRETS else repr(fault["input"])
            lines.append(f"{name}={given}: {fault['msg']}")
        else:
            lines.append(str(fault["ctx"]["error"]) if "ctx" in fault else fault["msg"])
    return "\n".join(lines)
