"""Creates the backend that the settings name."""

from collections.abc import Callable

from service.backends.embedded.backend import EmbeddedBackend
from service.backends.embedded.worker import ExitCause
from service.backends.torchserve.grpc import GrpcBackend
from service.backends.torchserve.management import TorchServeControl
from service.backends.torchserve.rest import RestBackend
from service.config.settings import Settings
from service.domain.backend import Backend, ModelControl, Target
from service.telemetry.metrics import Metrics

# TorchServe kills a worker that passes its response timeout. The gateway gives up before that.
RESPONSE_TIMEOUT_MARGIN_SECONDS = 30


def create_backend(settings: Settings, metrics: Metrics) -> tuple[Backend, ModelControl]:
    """Return the backend that the settings name, and its control."""
    if settings.backend == "workers":
        embedded = EmbeddedBackend(settings, restart_counter(metrics))
        return embedded, embedded
    host = settings.torchserve_host
    control = TorchServeControl(
        f"http://{host}:{settings.torchserve_management_port}",
        settings.torchserve_management_socket,
        load_timeout_seconds=settings.load_timeout_seconds,
        response_timeout_seconds=settings.backend_timeout_ms // 1000 + RESPONSE_TIMEOUT_MARGIN_SECONDS,
    )
    if settings.backend == "rest":
        return RestBackend(host, settings.torchserve_rest_port), control
    return GrpcBackend(f"{host}:{settings.torchserve_grpc_port}"), control


def restart_counter(metrics: Metrics) -> Callable[[Target, ExitCause], None]:
    """Return a function that counts a replaced worker of a version."""
    return lambda target, cause: metrics.worker_restarts.labels(target.model, target.version, cause).inc()
