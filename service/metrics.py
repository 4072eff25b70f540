"""Every metric of the gateway: one class, one registry, label values from closed sets."""

from collections.abc import Callable, Mapping
from importlib.metadata import version as distribution_version
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from service.backend import Target
from service.circuit import CircuitState

DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10)
QUEUE_BUCKETS = (0.0005, *DURATION_BUCKETS)
BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Outcome = Literal["success", "client_error", "server_error", "shed", "expired", "cancelled"]
Rejection = Literal["queue_full", "deadline", "draining", "circuit_open", "too_large", "buffers_full"]
CloseReason = Literal["full", "shared", "idle", "deadline", "drain", "split"]
CIRCUIT_STATES: Mapping[CircuitState, int] = {"closed": 0, "half_open": 1, "open": 2}
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# What TorchServe calls the states of its workers, lower case; anything else is counted as other.
WORKER_STATES = ("ready", "loading", "unloading", "stopped", "other")

_VERSION = ("model", "version")


class Metrics:
    """The gateway's metrics and the registry that holds them."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

        self.http_requests = Counter(
            "torchgate_http_requests_total", "HTTP requests answered.", ("method", "route", "code"), registry=registry
        )
        self.http_seconds = Histogram(
            "torchgate_http_request_duration_seconds",
            "Time from the first byte of a request to the last of its answer.",
            ("method", "route", "code"),
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self.http_in_progress = Gauge(
            "torchgate_http_requests_in_progress", "HTTP requests being answered.", registry=registry
        )

        self.inference_requests = Counter(
            "torchgate_inference_requests_total",
            "Prediction requests that reached a version, by how they ended.",
            (*_VERSION, "protocol", "role", "outcome"),
            registry=registry,
        )
        self.inference_items = Counter(
            "torchgate_inference_items_total", "Images answered, errors included.", _VERSION, registry=registry
        )
        self.inference_batches = Counter(
            "torchgate_inference_batches_total", "Batches that the backend answered.", _VERSION, registry=registry
        )
        self.inference_seconds = Histogram(
            "torchgate_inference_duration_seconds",
            "Time from a request's body being read to its last image being answered, by outcome.",
            (*_VERSION, "outcome"),
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "torchgate_inference_queue_seconds",
            "Time that a request's images waited for a batch: the longest of them.",
            _VERSION,
            buckets=QUEUE_BUCKETS,
            registry=registry,
        )
        self.compute_seconds = Histogram(
            "torchgate_inference_compute_seconds",
            "Round trip of one batch to the backend, failures left out.",
            _VERSION,
            buckets=DURATION_BUCKETS,
            registry=registry,
        )

        self.batch_size = Histogram(
            "torchgate_batch_size",
            "Images in one batch.",
            _VERSION,
            buckets=BATCH_SIZE_BUCKETS,
            registry=registry,
        )
        self.batch_close = Counter(
            "torchgate_batch_close_total",
            "Batches by why they hold no more: full, shared (the rest is for the other workers), "
            "idle (nothing else waited), deadline, drain, split (tried again).",
            (*_VERSION, "reason"),
            registry=registry,
        )
        self.batch_limit = Gauge(
            "torchgate_batch_limit", "Most images in one batch, as the objective allows.", _VERSION, registry=registry
        )
        self.batch_model_fixed = Gauge(
            "torchgate_batch_model_fixed_seconds",
            "Learnt time of a batch that does not depend on its size.",
            _VERSION,
            registry=registry,
        )
        self.batch_model_per_item = Gauge(
            "torchgate_batch_model_per_item_seconds",
            "Learnt time that each image adds to a batch.",
            _VERSION,
            registry=registry,
        )
        self.queue_depth = Gauge("torchgate_queue_depth", "Images that wait for a batch.", _VERSION, registry=registry)
        self.queue_oldest_age = Gauge(
            "torchgate_queue_oldest_age_seconds",
            "For how long the oldest waiting image has waited.",
            _VERSION,
            registry=registry,
        )
        self.in_flight_batches = Gauge(
            "torchgate_inflight_batches", "Batches that the backend works on.", _VERSION, registry=registry
        )
        self.rejected = Counter(
            "torchgate_rejected_total",
            "Requests refused at the door, by reason.",
            ("reason",),
            registry=registry,
        )

        self.backend_up = Gauge("torchgate_backend_up", "1 while the backend answers, else 0.", registry=registry)
        self.backend_workers = Gauge(
            "torchgate_backend_workers", "Workers of a version by state.", (*_VERSION, "state"), registry=registry
        )
        self.backend_pending = Gauge(
            "torchgate_backend_pending_requests",
            "Batches that wait inside the backend.",
            _VERSION,
            registry=registry,
        )
        self.backend_errors = Counter(
            "torchgate_backend_errors_total",
            "Batches that got no answer, by the error's code.",
            (*_VERSION, "kind"),
            registry=registry,
        )
        self.backend_circuit = Gauge(
            "torchgate_backend_circuit_state",
            "0 while batches are sent, 1 while one is tried, 2 while none is sent because the last were not answered.",
            _VERSION,
            registry=registry,
        )
        self.worker_restarts = Counter(
            "torchgate_worker_restarts_total",
            "Workers replaced, by why: died, timeout, memory, answer (one that made no sense). Backend workers only.",
            (*_VERSION, "reason"),
            registry=registry,
        )
        self.worker_memory = Gauge(
            "torchgate_worker_memory_bytes",
            "Resident memory of a worker. Backend workers only.",
            (*_VERSION, "worker"),
            registry=registry,
        )
        self.model_ready = Gauge(
            "torchgate_model_ready", "1 while a version answers requests, else 0.", _VERSION, registry=registry
        )
        self.model_load_seconds = Gauge(
            "torchgate_model_load_seconds",
            "Time that a version last took to load, warm up and pass its self-check.",
            _VERSION,
            registry=registry,
        )
        self.model_info = Info("torchgate_model", "What a version is.", _VERSION, registry=registry)
        self.build_info = Info("torchgate_build", "What this gateway is.", registry=registry)
        self.build_info.info({"version": distribution_version("torchgate")})
        self._http: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}
        for reason in Rejection.__args__:  # type: ignore[attr-defined]
            self.rejected.labels(reason)
        self.backend_up.set(0)

    def http_request(self, method: str, route: str, code: str, seconds: float) -> None:
        """Count and time one request that was answered; the labels come from closed sets."""
        children = self._http.get((method, route, code))
        if children is None:
            labels = (method, route, code)
            children = self._http[labels] = (self.http_requests.labels(*labels), self.http_seconds.labels(*labels))
        counter, histogram = children
        counter.inc()
        histogram.observe(seconds)

    def of(self, target: Target) -> "VersionMetrics":
        """Return the metrics of one version with their labels bound, so that a request looks nothing up."""
        return VersionMetrics(self, target)


class VersionMetrics:
    """One version's children of the labelled metrics."""

    def __init__(self, metrics: Metrics, target: Target) -> None:
        labels = (target.model, target.version)
        self.requests = {
            outcome: metrics.inference_requests.labels(*labels, "http", "primary", outcome)
            for outcome in Outcome.__args__  # type: ignore[attr-defined]
        }
        self.seconds = {
            outcome: metrics.inference_seconds.labels(*labels, outcome)
            for outcome in Outcome.__args__  # type: ignore[attr-defined]
        }
        self.close = {
            reason: metrics.batch_close.labels(*labels, reason)
            for reason in CloseReason.__args__  # type: ignore[attr-defined]
        }
        self.workers = {state: metrics.backend_workers.labels(*labels, state) for state in WORKER_STATES}
        self.items = metrics.inference_items.labels(*labels)
        self.batches = metrics.inference_batches.labels(*labels)
        self.queue_seconds = metrics.queue_seconds.labels(*labels)
        self.compute_seconds = metrics.compute_seconds.labels(*labels)
        self.batch_size = metrics.batch_size.labels(*labels)
        self.batch_limit = metrics.batch_limit.labels(*labels)
        self.batch_model_fixed = metrics.batch_model_fixed.labels(*labels)
        self.batch_model_per_item = metrics.batch_model_per_item.labels(*labels)
        self.queue_oldest_age = metrics.queue_oldest_age.labels(*labels)
        self.circuit = metrics.backend_circuit.labels(*labels)
        self.queue_depth = metrics.queue_depth.labels(*labels)
        self.in_flight_batches = metrics.in_flight_batches.labels(*labels)
        self.pending = metrics.backend_pending.labels(*labels)
        self.ready = metrics.model_ready.labels(*labels)
        self.load_seconds = metrics.model_load_seconds.labels(*labels)
        self.info = metrics.model_info.labels(*labels)
        self._errors = metrics.backend_errors
        self._labels = labels
        self.ready.set(0)

    def backend_error(self, kind: str) -> None:
        """Count a batch that got no answer; `kind` is the code of a BackendError, a closed set."""
        self._errors.labels(*self._labels, kind).inc()

    def watch(
        self,
        *,
        num_waiting: Callable[[], int],
        num_running: Callable[[], int],
        oldest_age: Callable[[], float],
        circuit_state: Callable[[], CircuitState],
    ) -> None:
        """Ask the batcher how it is whenever the metrics are read, so that a request need not write it down."""
        self.queue_depth.set_function(num_waiting)
        self.in_flight_batches.set_function(num_running)
        self.queue_oldest_age.set_function(oldest_age)
        self.circuit.set_function(lambda: CIRCUIT_STATES[circuit_state()])

    def show_forecast(self, limit: int, fixed_seconds: float, per_item_seconds: float) -> None:
        """Set what the batcher has learnt and made of it."""
        self.batch_limit.set(limit)
        self.batch_model_fixed.set(fixed_seconds)
        self.batch_model_per_item.set(per_item_seconds)

    def show_workers(self, states: Mapping[str, int]) -> None:
        """Set the number of workers in each state; states without a worker go to 0."""
        for state in WORKER_STATES[:-1]:
            self.workers[state].set(states.get(state, 0))
        self.workers["other"].set(sum(n for state, n in states.items() if state not in WORKER_STATES))
