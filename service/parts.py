"""Those parts of the gateway that the settings choose."""

from service.backend import Backend, ModelControl
from service.metrics import Metrics
from service.prediction_log.records import NoLog, PredictionLog
from service.settings import Settings
from service.torchserve.grpc import GrpcBackend
from service.torchserve.management import TorchServeControl
from service.torchserve.rest import RestBackend
from service.tracing import NoTracing, Tracing
from service.workers.backend import Workers

# TorchServe kills a worker that passes its response timeout. The gateway gives up first, and says so.
RESPONSE_TIMEOUT_MARGIN_SECONDS = 30


def make_seam(settings: Settings, metrics: Metrics) -> tuple[Backend, ModelControl]:
    """Return the backend that the settings name, and its control."""
    if settings.backend == "workers":
        workers = Workers(settings, metrics)
        return workers, workers
    host = settings.torchserve_host
    control = TorchServeControl(
        f"http://{settings.torchserve_host}:{settings.torchserve_management_port}",
        load_timeout_seconds=settings.load_timeout_seconds,
        response_timeout_seconds=settings.backend_timeout_ms // 1000 + RESPONSE_TIMEOUT_MARGIN_SECONDS,
    )
    if settings.backend == "rest":
        return RestBackend(host, settings.torchserve_rest_port), control
    return GrpcBackend(f"{host}:{settings.torchserve_grpc_port}"), control


def make_prediction_log(settings: Settings, metrics: Metrics) -> PredictionLog:
    """Return the log that the settings ask for."""
    if settings.prediction_log_dir is None:
        return NoLog()
    from service.prediction_log.log import ParquetLog  # noqa: PLC0415 - an extra brings what it needs

    return ParquetLog(
        settings.prediction_log_dir,
        settings.prediction_log_max_bytes,
        settings.prediction_log_sample,
        settings.prediction_log_inputs,
        metrics,
    )


def make_tracing(settings: Settings, metrics: Metrics, gateway_name: str) -> Tracing:
    """Return what takes the spans; OpenTelemetry is imported only where there are any."""
    if settings.tracing == "off":
        return NoTracing()
    from service.otlp import OtlpTracing  # noqa: PLC0415

    return OtlpTracing(settings, metrics, gateway_name)
