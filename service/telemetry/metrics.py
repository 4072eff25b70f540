"""Every metric of the gateway: one class, one registry, label values from closed sets."""

from collections.abc import Iterator
from importlib.metadata import version as distribution_version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from service.config.objectives import Objectives
from service.config.settings import Settings
from service.domain.backend import Target
from service.telemetry.fast_metrics import QuickCounter, QuickHistogram
from service.telemetry.labels import (
    BATCH_SIZE_BUCKETS,
    DIFFERENCE_BUCKETS,
    DURATION_BUCKETS,
    LATENCY_DIFFERENCE_BUCKETS,
    METHODS,
    QUEUE_BUCKETS,
    VERSION,
    Rejection,
)
from service.telemetry.model_metrics import ModelMetrics

_DEFAULTS = Settings.model_construct().objectives


class Metrics:
    """The gateway's metrics and the registry that holds them."""

    def __init__(self, objectives: Objectives = _DEFAULTS) -> None:
        self.objectives = objectives
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

        self.http_requests = QuickCounter(
            "torchgate_http_requests_total", "HTTP requests answered.", ("method", "route", "code"), registry=registry
        )
        self.http_seconds = QuickHistogram(
            "torchgate_http_request_duration_seconds",
            "Time from the first byte of a request to the last of its answer.",
            ("method", "route", "code"),
            buckets=objectives.edges(DURATION_BUCKETS),
            registry=registry,
        )
        self.http_in_progress = Gauge(
            "torchgate_http_requests_in_progress",
            "HTTP requests being answered; `other` is every route that does not answer predictions.",
            ("route",),
            registry=registry,
        )

        self.inference_requests = QuickCounter(
            "torchgate_inference_requests_total",
            "Prediction requests that reached a version, by how they ended.",
            (*VERSION, "protocol", "role", "outcome"),
            registry=registry,
        )
        self.inference_items = QuickCounter(
            "torchgate_inference_items_total", "Images answered, errors included.", VERSION, registry=registry
        )
        self.inference_batches = QuickCounter(
            "torchgate_inference_batches_total", "Batches that the backend answered.", VERSION, registry=registry
        )
        self.inference_seconds = QuickHistogram(
            "torchgate_inference_duration_seconds",
            "Time from a request's body being read to its last image being answered, by outcome.",
            (*VERSION, "outcome"),
            buckets=objectives.edges(DURATION_BUCKETS),
            registry=registry,
        )
        self.queue_seconds = QuickHistogram(
            "torchgate_inference_queue_seconds",
            "Time that a request's images waited for a batch: the longest of them.",
            VERSION,
            buckets=objectives.edges(QUEUE_BUCKETS),
            registry=registry,
        )
        self.compute_seconds = QuickHistogram(
            "torchgate_inference_compute_seconds",
            "Round trip of one batch to the backend, failures left out.",
            VERSION,
            buckets=objectives.edges(DURATION_BUCKETS),
            registry=registry,
        )

        self.batch_size = QuickHistogram(
            "torchgate_batch_size",
            "Images in one batch.",
            VERSION,
            buckets=BATCH_SIZE_BUCKETS,
            registry=registry,
        )
        self.batch_close = QuickCounter(
            "torchgate_batch_close_total",
            "Batches by why they hold no more: full, shared (the rest is for the other workers), "
            "idle (nothing else waited), deadline, drain, split (tried again).",
            (*VERSION, "reason"),
            registry=registry,
        )
        self.batch_limit = Gauge(
            "torchgate_batch_limit", "Most images in one batch, as the objective allows.", VERSION, registry=registry
        )
        self.batch_model_fixed = Gauge(
            "torchgate_batch_model_fixed_seconds",
            "Learnt time of a batch that does not depend on its size.",
            VERSION,
            registry=registry,
        )
        self.batch_model_per_item = Gauge(
            "torchgate_batch_model_per_item_seconds",
            "Learnt time that each image adds to a batch.",
            VERSION,
            registry=registry,
        )
        self.queue_depth = Gauge("torchgate_queue_depth", "Images that wait for a batch.", VERSION, registry=registry)
        self.queue_oldest_age = Gauge(
            "torchgate_queue_oldest_age_seconds",
            "For how long the oldest waiting image has waited.",
            VERSION,
            registry=registry,
        )
        self.in_flight_batches = Gauge(
            "torchgate_inflight_batches", "Batches that the backend works on.", VERSION, registry=registry
        )
        self.rejected = QuickCounter(
            "torchgate_rejected_total",
            "Requests refused at the door, by reason.",
            ("reason",),
            registry=registry,
        )

        self.backend_up = Gauge("torchgate_backend_up", "1 while the backend answers, else 0.", registry=registry)
        self.backend_workers = Gauge(
            "torchgate_backend_workers", "Workers of a version by state.", (*VERSION, "state"), registry=registry
        )
        self.backend_workers_wanted = Gauge(
            "torchgate_backend_workers_wanted", "Workers that a version should have.", VERSION, registry=registry
        )
        self.backend_pending = Gauge(
            "torchgate_backend_pending_requests",
            "Batches that wait inside the backend.",
            VERSION,
            registry=registry,
        )
        self.backend_errors = Counter(
            "torchgate_backend_errors_total",
            "Batches that got no answer, by the error's code.",
            (*VERSION, "kind"),
            registry=registry,
        )
        self.backend_circuit = Gauge(
            "torchgate_backend_circuit_state",
            "0 while batches are sent, 1 while one is tried, 2 while none is sent because the last were not answered.",
            VERSION,
            registry=registry,
        )
        self.worker_restarts = Counter(
            "torchgate_worker_restarts_total",
            "Workers replaced, by why: died, timeout, memory, answer (one that made no sense). Backend workers only.",
            (*VERSION, "reason"),
            registry=registry,
        )
        self.worker_memory = Gauge(
            "torchgate_backend_worker_memory_bytes",
            "Resident memory of a worker, where the backend tells.",
            (*VERSION, "worker"),
            registry=registry,
        )
        self.prediction_log_records = Counter(
            "torchgate_prediction_log_records_total",
            "Rows for the prediction log, by what became of them: written, dropped (the buffer was full), failed.",
            ("outcome",),
            registry=registry,
        )
        self.shadow_requests = Counter(
            "torchgate_shadow_requests_total",
            "Copies of requests that `primary` answered, by what became of them: compared, failed, shed.",
            (*VERSION, "primary", "outcome"),
            registry=registry,
        )
        self.shadow_items = Counter(
            "torchgate_shadow_items_total",
            "Images compared, by whether both versions gave the same class.",
            (*VERSION, "primary", "result"),
            registry=registry,
        )
        self.shadow_difference = Histogram(
            "torchgate_shadow_difference",
            "Largest difference of a probability that the caller was told, for each image compared.",
            (*VERSION, "primary"),
            buckets=DIFFERENCE_BUCKETS,
            registry=registry,
        )
        self.shadow_latency = Histogram(
            "torchgate_shadow_latency_difference_seconds",
            "By how much a copy took longer than its request; negative where it was faster.",
            (*VERSION, "primary"),
            buckets=LATENCY_DIFFERENCE_BUCKETS,
            registry=registry,
        )
        self.model_ready = Gauge(
            "torchgate_model_ready", "1 while a version answers requests, else 0.", VERSION, registry=registry
        )
        self.model_load_seconds = Gauge(
            "torchgate_model_load_seconds",
            "Time that a version last took to load, warm up and pass its self-check.",
            VERSION,
            registry=registry,
        )
        self.trace_spans = Counter(
            "torchgate_trace_spans_total",
            "Spans by what became of them: exported, dropped (too many waited), failed (no collector took them).",
            ("result",),
            registry=registry,
        )
        self.model_info = Info("torchgate_model", "What a version is.", VERSION, registry=registry)
        self.loop_lag_seconds = QuickHistogram(
            "torchgate_event_loop_lag_seconds",
            "By how much the event loop came late to a timer of its own, ten times a second.",
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self.build_info = Info("torchgate_build", "What this gateway is.", registry=registry)
        self.build_info.info({"version": distribution_version("torchgate")})
        self._http: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        for reason in Rejection.__args__:  # type: ignore[attr-defined]
            self.rejected.labels(reason)
        self.backend_up.set(0)
        self.models = ModelMetrics(registry)
        self._declare_objectives(registry, objectives)

    def _declare_objectives(self, registry: CollectorRegistry, objectives: Objectives) -> None:
        self.slo_fast_requests = QuickCounter(
            "torchgate_slo_fast_requests_total",
            "Requests answered within torchgate_slo_latency_threshold_seconds.",
            VERSION,
            registry=registry,
        )
        self.slo_latency_threshold = Gauge(
            "torchgate_slo_latency_threshold_seconds", "Time within which an answer is fast.", registry=registry
        )
        self.slo_objective = Gauge(
            "torchgate_slo_objective_ratio",
            "Share that should be good: of the requests answered (availability), of the answers fast (latency).",
            ("objective",),
            registry=registry,
        )
        self.slo_latency_threshold.set(objectives.latency_seconds)
        self.slo_objective.labels("availability").set(objectives.availability_ratio)
        self.slo_objective.labels("latency").set(objectives.latency_ratio)

    def http_request(self, method: str, route: str, code: int, seconds: float) -> None:
        """Count and time one request that was answered; `route` and `code` come from closed sets."""
        key = (method, route, code)
        children = self._http.get(key)
        if children is None:
            labels = (method if method in METHODS else "other", route, str(code))
            children = self._http[key] = (self.http_requests.labels(*labels), self.http_seconds.labels(*labels))
        counter, histogram = children
        counter.inc()
        histogram.observe(seconds)

    def forget(self, target: Target) -> None:
        """Remove a version's children of all metrics."""
        labels = {"model": target.model, "version": target.version}
        for instrument in self.instruments():
            if instrument._labelnames[:2] == VERSION:  # noqa: SLF001
                instrument.remove_by_labels(labels)

    def instruments(self) -> Iterator[MetricWrapperBase]:
        """Yield every counter, gauge, histogram and fact."""
        for each in (*vars(self).values(), *vars(self.models).values()):
            if isinstance(each, MetricWrapperBase):
                yield each
