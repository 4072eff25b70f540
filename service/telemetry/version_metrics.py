"""One version's metrics with their labels bound, so that a request looks nothing up."""

import collections
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import Counter, Histogram

from service.domain.backend import Target
from service.domain.traffic import Role
from service.telemetry.metric_labels import (
    CIRCUIT_STATES,
    SHADOW_RESULTS,
    WORKER_STATES,
    CircuitState,
    CloseReason,
    Outcome,
    ShadowOutcome,
)
from service.telemetry.metrics import Metrics


class ShadowMetrics:
    """The shadow metrics of one version, for the requests of one primary."""

    def __init__(self, metrics: Metrics, shadow: Target, primary: str) -> None:
        labels = (shadow.model, shadow.version, primary)
        self.requests = {
            outcome: metrics.shadow_requests.labels(*labels, outcome)
            for outcome in ShadowOutcome.__args__  # type: ignore[attr-defined]
        }
        self.items = {result: metrics.shadow_items.labels(*labels, result) for result in SHADOW_RESULTS}
        self.difference = metrics.shadow_difference.labels(*labels)
        self.latency = metrics.shadow_latency.labels(*labels)


class DriftMetrics:
    """The metrics of one version's answers and their drift."""

    def __init__(self, metrics: Metrics, target: Target, classes: Sequence[str]) -> None:
        self._labels = (target.model, target.version)
        self._classes = [metrics.models.prediction_class.labels(*self._labels, name) for name in classes]
        self._confidence = metrics.models.prediction_confidence.labels(*self._labels)
        self._score, self._threshold = metrics.models.drift_score, metrics.models.drift_threshold
        self.window_items = metrics.models.drift_window_items.labels(*self._labels)

    def count(self, answers: Sequence[tuple[int, float]]) -> None:
        """Count answers, each a class and its probability."""
        for index, count in collections.Counter([index for index, _ in answers]).items():
            self._classes[index].inc(count)
        for _, confidence in answers:
            self._confidence.observe(min(confidence, 1.0))  # softmax may round to a little more

    def show_drift(self, kind: str, score: float, threshold: float) -> None:
        """Set one score and its threshold."""
        self._score.labels(*self._labels, kind).set(score)
        self._threshold.labels(*self._labels, kind).set(threshold)


class Durations(dict[Outcome, Histogram]):
    """Histograms by outcome, each made for its first request: one has 18 series, and most outcomes never happen."""

    def __init__(self, histogram: Histogram, labels: tuple[str, str]) -> None:
        super().__init__()
        self._histogram, self._labels = histogram, labels

    def __missing__(self, outcome: Outcome) -> Histogram:
        child = self[outcome] = self._histogram.labels(*self._labels, outcome)
        return child


@dataclass(frozen=True, slots=True)
class BatcherGauges:
    """Functions that read a batcher's present state."""

    num_waiting: Callable[[], int]
    num_running: Callable[[], int]
    oldest_age: Callable[[], float]
    circuit_state: Callable[[], CircuitState]
    batch_limit: Callable[[], int]
    fixed_seconds: Callable[[], float]
    per_item_seconds: Callable[[], float]


class VersionMetrics:
    """The metrics of one version."""

    def __init__(self, metrics: Metrics, target: Target) -> None:
        labels = (target.model, target.version)
        self._requests = metrics.inference_requests
        self._labels = labels
        self._requests_by_role: dict[Role, Mapping[Outcome, Counter]] = {}
        self.play("primary")
        self.fast_requests = metrics.slo_fast_requests.labels(*labels)
        self.fast_seconds = metrics.objectives.latency_seconds
        self.seconds = Durations(metrics.inference_seconds, labels)
        self.close = {
            reason: metrics.batch_close.labels(*labels, reason)
            for reason in CloseReason.__args__  # type: ignore[attr-defined]
        }
        self.workers = {state: metrics.backend_workers.labels(*labels, state) for state in WORKER_STATES}
        self.workers_wanted = metrics.backend_workers_wanted.labels(*labels)
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
        self.feedback = {
            True: metrics.models.feedback.labels(*labels, "correct"),
            False: metrics.models.feedback.labels(*labels, "wrong"),
        }
        self._errors = metrics.backend_errors
        self._memory = metrics.worker_memory
        self._num_memories = 0
        self.ready.set(0)

    def play(self, role: Role) -> None:
        """Count requests under this role from now on."""
        if role not in self._requests_by_role:
            self._requests_by_role[role] = {
                outcome: self._requests.labels(*self._labels, "http", role, outcome)
                for outcome in Outcome.__args__  # type: ignore[attr-defined]
            }
        self.requests = self._requests_by_role[role]

    def requests_in_all_roles(self) -> Mapping[Outcome, Sequence[Counter]]:
        """Return the request counters by outcome, one for each role that the version has had."""
        return {outcome: [each[outcome] for each in self._requests_by_role.values()] for outcome in self.requests}

    def backend_error(self, kind: str) -> None:
        """Count a failed batch; `kind` is the code of a BackendError, a closed set."""
        self._errors.labels(*self._labels, kind).inc()

    def watch(self, gauges: BatcherGauges) -> None:
        """Read the batcher's gauges whenever Prometheus asks, so that requests need not update them."""
        self.queue_depth.set_function(gauges.num_waiting)
        self.in_flight_batches.set_function(gauges.num_running)
        self.queue_oldest_age.set_function(gauges.oldest_age)
        self.circuit.set_function(lambda: CIRCUIT_STATES[gauges.circuit_state()])
        self.batch_limit.set_function(gauges.batch_limit)
        self.batch_model_fixed.set_function(gauges.fixed_seconds)
        self.batch_model_per_item.set_function(gauges.per_item_seconds)

    def show_workers(self, states: Mapping[str, int]) -> None:
        """Set the number of workers in each state; states without a worker go to 0."""
        for state in WORKER_STATES[:-1]:
            self.workers[state].set(states.get(state, 0))
        self.workers["other"].set(sum(n for state, n in states.items() if state not in WORKER_STATES))

    def show_memory(self, memory_bytes: Sequence[int]) -> None:
        """Set the memory of each worker that the backend tells of; those that were there before and are not now go."""
        for index, num_bytes in enumerate(memory_bytes):
            self._memory.labels(*self._labels, str(index)).set(num_bytes)
        for index in range(len(memory_bytes), self._num_memories):
            self._memory.remove(*self._labels, str(index))
        self._num_memories = len(memory_bytes)
