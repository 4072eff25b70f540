"""All metrics of the gateway in one registry; label values come from closed sets."""

from collections.abc import Iterator
from functools import partial
from importlib.metadata import version as distribution_version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from service.config.objectives import Objectives
from service.config.settings import Settings
from service.domain.archive import TrustFault
from service.domain.backend import Target
from service.telemetry.metric_labels import (
    BATCH_SIZE_BUCKETS,
    DIFFERENCE_BUCKETS,
    DURATION_BUCKETS,
    LATENCY_DIFFERENCE_BUCKETS,
    METHODS,
    QUEUE_BUCKETS,
    VERSION,
    Rejection,
)
from service.telemetry.state_metrics import StateMetrics
from service.telemetry.subjects.callers import CallerMetrics
from service.telemetry.subjects.connections import ConnectionMetrics
from service.telemetry.subjects.models import ModelMetrics

_DEFAULTS = Settings.model_construct().objectives


class Metrics:
    """The gateway's metrics and the registry that holds them."""

    def __init__(self, objectives: Objectives = _DEFAULTS) -> None:  # noqa: PLR0915 - one statement for each metric
        self.objectives = objectives
        disable_created_metrics()  # type: ignore[no-untyped-call]  # Prometheus would keep them as more series
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        info = partial(Info, registry=registry)

        self.http_requests = counter(
            "torchgate_http_requests_total", "HTTP requests answered.", ("method", "route", "code")
        )
        self.http_seconds = histogram(
            "torchgate_http_request_duration_seconds",
            "Time from a request's first byte to the last byte of its answer.",
            ("method", "route", "code"),
            buckets=objectives.edges(DURATION_BUCKETS),
        )
        self.http_in_progress = gauge(
            "torchgate_http_requests_in_progress",
            "HTTP requests in progress; `other` stands for all routes without predictions.",
            ("route",),
        )

        self.inference_requests = counter(
            "torchgate_inference_requests_total",
            "Prediction requests that reached a version, by outcome.",
            (*VERSION, "protocol", "role", "outcome"),
        )
        # Next to what it is a share of: a scrape takes the two at one moment.
        self.slo_fast_requests = counter(
            "torchgate_slo_fast_requests_total",
            "Requests answered within torchgate_slo_latency_threshold_seconds.",
            VERSION,
        )
        self.inference_items = counter("torchgate_inference_items_total", "Images answered, errors included.", VERSION)
        self.inference_batches = counter(
            "torchgate_inference_batches_total", "Batches that the backend answered.", VERSION
        )
        self.inference_seconds = histogram(
            "torchgate_inference_duration_seconds",
            "Time from a complete request body to the answer for its last image, by outcome.",
            (*VERSION, "outcome"),
            buckets=objectives.edges(DURATION_BUCKETS),
        )
        self.queue_seconds = histogram(
            "torchgate_inference_queue_seconds",
            "Longest time that an image of a request waited in the queue.",
            VERSION,
            buckets=objectives.edges(QUEUE_BUCKETS),
        )
        self.compute_seconds = histogram(
            "torchgate_inference_compute_seconds",
            "Round trip of one successful batch to the backend.",
            VERSION,
            buckets=objectives.edges(DURATION_BUCKETS),
        )

        self.batch_size = histogram("torchgate_batch_size", "Images in one batch.", VERSION, buckets=BATCH_SIZE_BUCKETS)
        self.batch_close = counter(
            "torchgate_batch_close_total",
            "Batches by why they closed: full, shared (the rest goes to other workers), idle (the queue was empty), "
            "deadline, drain, split (a failed batch, tried again in parts), large (an image that goes alone).",
            (*VERSION, "reason"),
        )
        self.batch_limit = gauge(
            "torchgate_batch_limit", "Largest batch that meets the latency objective, in images.", VERSION
        )
        self.batch_model_fixed = gauge(
            "torchgate_batch_model_fixed_seconds", "Learnt fixed time of a batch, whatever its size.", VERSION
        )
        self.batch_model_per_item = gauge(
            "torchgate_batch_model_per_item_seconds", "Learnt time that each image adds to a batch.", VERSION
        )
        self.queue_depth = gauge("torchgate_queue_depth", "Queued images.", VERSION)
        self.queue_oldest_age = gauge("torchgate_queue_oldest_age_seconds", "Age of the oldest queued image.", VERSION)
        self.in_flight_batches = gauge("torchgate_inflight_batches", "Batches in progress at the backend.", VERSION)
        self.rejected = counter(
            "torchgate_rejected_total", "Requests refused before they were queued, by reason.", ("reason",)
        )

        self.backend_up = gauge("torchgate_backend_up", "1 while the backend answers, otherwise 0.")
        self.backend_workers = gauge("torchgate_backend_workers", "Workers of a version by state.", (*VERSION, "state"))
        self.backend_workers_wanted = gauge(
            "torchgate_backend_workers_wanted", "Workers that a version should have.", VERSION
        )
        self.backend_pending = gauge(
            "torchgate_backend_pending_requests", "Batches queued inside the backend.", VERSION
        )
        self.backend_errors = counter(
            "torchgate_backend_errors_total", "Failed batches, by the error's code.", (*VERSION, "kind")
        )
        self.backend_circuit = gauge(
            "torchgate_backend_circuit_state",
            "Circuit breaker: 0 closed, 1 half open (one batch is tried), 2 open (the last batches failed).",
            VERSION,
        )
        self.worker_restarts = counter(
            "torchgate_worker_restarts_total",
            "Workers replaced, by reason: died, timeout, memory, answer (an invalid one). Embedded workers only.",
            (*VERSION, "reason"),
        )
        self.worker_memory = gauge(
            "torchgate_backend_worker_memory_bytes",
            "Resident memory of a worker, if the backend reports it.",
            (*VERSION, "worker"),
        )
        self.prediction_log_records = counter(
            "torchgate_prediction_log_records_total",
            "Rows of the prediction log by result: written, dropped (the buffer was full), failed (the disk).",
            ("outcome",),
        )
        self.shadow_requests = counter(
            "torchgate_shadow_requests_total",
            "Shadow copies of requests that `primary` answered, by result: compared, failed, shed.",
            (*VERSION, "primary", "outcome"),
        )
        self.shadow_items = counter(
            "torchgate_shadow_items_total",
            "Images compared with the shadow, by whether both versions predicted the same class.",
            (*VERSION, "primary", "result"),
        )
        self.shadow_difference = histogram(
            "torchgate_shadow_difference",
            "Largest difference between the two versions' probabilities in an answer, for each image compared.",
            (*VERSION, "primary"),
            buckets=DIFFERENCE_BUCKETS,
        )
        self.shadow_latency = histogram(
            "torchgate_shadow_latency_difference_seconds",
            "Time of a shadow copy minus the time of its request; negative if the copy was faster.",
            (*VERSION, "primary"),
            buckets=LATENCY_DIFFERENCE_BUCKETS,
        )
        self.model_ready = gauge("torchgate_model_ready", "1 while a version answers requests, otherwise 0.", VERSION)
        self.model_load_seconds = gauge(
            "torchgate_model_load_seconds", "Time of a version's last load, with warm-up and self-check.", VERSION
        )
        self.trace_spans = counter(
            "torchgate_trace_spans_total",
            "Trace spans by result: exported, dropped (the queue was full), failed (no collector accepted them).",
            ("result",),
        )
        self.log_records_dropped = counter(
            "torchgate_log_records_dropped_total",
            "Lines of the log that nobody read in time, so that there was no room for them.",
        )
        self.archive_refusals = counter(
            "torchgate_archive_refusals_total",
            "Manifests and archives refused, by reason: unsigned, unknown_key, forged, replayed, expired, revoked, "
            "tampered. A load that is tried again counts again.",
            ("reason",),
        )
        self.untrusted_versions = gauge(
            "torchgate_untrusted_versions",
            "Ready versions that would not be loaded again, by reason: revoked (the manifest no longer lists them), "
            "unknown_key (no trusted key has signed the manifest).",
            ("reason",),
        )
        self.manifest_expiry = gauge(
            "torchgate_manifest_expiry_timestamp_seconds",
            "When the manifest's signature expires; 0 if no signature is asked for.",
        )
        self.model_info = info("torchgate_model", "Facts about a version.", VERSION)
        self.loop_lag_seconds = histogram(
            "torchgate_event_loop_lag_seconds",
            "Delay of a timer on the event loop, measured ten times a second.",
            buckets=DURATION_BUCKETS,
        )
        self.tls_certificate_expiry = gauge(
            "torchgate_tls_certificate_expiry_timestamp_seconds",
            "When the certificate that new connections get expires, as Unix time; 0 without TLS.",
        )
        self.tls_files_broken = gauge(
            "torchgate_tls_files_broken",
            "1 while the files of TLS cannot be used and the certificate before stays, otherwise 0.",
        )
        self.build_info = info("torchgate_build", "Facts about this gateway.")
        self.build_info.info({"version": distribution_version("torchgate")})
        self._http: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        for reason in Rejection.__args__:  # type: ignore[attr-defined]
            self.rejected.labels(reason)
        for fault in TrustFault.__args__:  # type: ignore[attr-defined]
            self.archive_refusals.labels(fault)
        for fault in ("revoked", "unknown_key"):
            self.untrusted_versions.labels(fault)
        self.backend_up.set(0)
        self.models = ModelMetrics(registry)
        self.callers = CallerMetrics(registry)
        self.state = StateMetrics(registry)
        self.connections = ConnectionMetrics(registry)
        self.slo_latency_threshold = gauge(
            "torchgate_slo_latency_threshold_seconds", "Latency up to which an answer counts as fast."
        )
        self.slo_objective = gauge(
            "torchgate_slo_objective_ratio",
            "Objective: the share of requests answered (availability), and of answers that are fast (latency).",
            ("objective",),
        )
        self.slo_latency_threshold.set(objectives.latency_seconds)
        self.slo_objective.labels("availability").set(objectives.availability_ratio)
        self.slo_objective.labels("latency").set(objectives.latency_ratio)

    def http_request(self, method: str, route: str, code: int, seconds: float) -> None:
        """Count and time one answered request; `route` and `code` come from closed sets."""
        key = (method, route, code)
        children = self._http.get(key)
        if children is None:
            labels = (method if method in METHODS else "other", route, str(code))
            children = self._http[key] = (self.http_requests.labels(*labels), self.http_seconds.labels(*labels))
        counter, histogram = children
        counter.inc()
        histogram.observe(seconds)

    def forget(self, target: Target) -> None:
        """Remove a version from all metrics."""
        labels = {"model": target.model, "version": target.version}
        for instrument in self.instruments():
            if instrument._labelnames[:2] == VERSION:  # noqa: SLF001
                instrument.remove_by_labels(labels)

    def instruments(self) -> Iterator[MetricWrapperBase]:
        """Yield every metric."""
        for group in (self, self.models, self.state, self.callers, self.connections):
            for name, each in vars(group).items():
                if isinstance(each, MetricWrapperBase) and not name.startswith("_"):  # those are parts of others
                    yield each
