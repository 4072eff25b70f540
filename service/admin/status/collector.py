"""Collects status snapshots from the metrics and the versions."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.process_collector import ProcessCollector

from service.admin.status.broadcaster import StatusSnapshot
from service.admin.status.readings import VersionReading, edges_of, grown, samples, together, value
from service.admin.status.shown import as_json, per_second, quantiles_ms, shown_rollout, shown_version
from service.domain.backend import Target
from service.domain.model_state import ModelState
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler
from service.telemetry.metrics import Metrics

# Quantiles of a single second would be too restless to read.
WINDOW_SECONDS = 10.0
CPU = "process_cpu_seconds_total"

Drift = Mapping[tuple[str, str], Mapping[str, float]]


@dataclass
class Reading:
    """The counters at one time."""

    time: float  # time.monotonic()
    answers: Mapping[str, float]  # requests by kind of answer
    rejected: Mapping[str, float]
    cpu_seconds: float
    versions: dict[Target, VersionReading] = field(default_factory=dict)


class StatusCollector:
    """Makes the status page's snapshots."""

    def __init__(
        self, reconciler: Reconciler, registry: Registry, metrics: Metrics, route: str, facts: Mapping[str, Any]
    ) -> None:
        self._reconciler = reconciler
        self._registry = registry
        self._metrics = metrics
        self._route = route  # the route whose requests are counted
        self._facts = facts  # about the gateway; they never change
        self._process = ProcessCollector(registry=None)
        self._readings: deque[Reading] = deque()

    async def look(self) -> StatusSnapshot:
        """Return a snapshot. Requests are served between versions."""
        model_versions = [
            each for versions in self._reconciler.view.model_versions.values() for each in versions.values()
        ]
        process = {sample.name: sample.value for sample in samples(self._process)}
        drift = self._drift_scores()
        reading = Reading(time.monotonic(), self._answers(), self._rejected(), process.get(CPU, 0.0))
        for model_version in model_versions:
            reading.versions[model_version.target] = VersionReading.of(model_version.metrics)
            await asyncio.sleep(0)
        last, first = self._keep(reading)
        seconds = reading.time - first.time
        edges, sizes = _edges(model_versions)
        versions = []
        for model_version in model_versions:
            target = model_version.target
            state = self._registry.models.get(target.model, ModelState(target.model))
            counted = reading.versions[target].since(first.versions.get(target))
            scores = drift.get((target.model, target.version), {})
            versions.append(shown_version(model_version, state, counted, seconds, edges, scores))
            await asyncio.sleep(0)
        now = {
            "gateway": {**self._facts, **self._gateway(reading, first, process)},
            "edges": edges,
            "sizes": sizes,
            "rejected": per_second(grown(reading.rejected, first.rejected), seconds),
            "versions": versions,
            "rollouts": [shown for state in self._registry.models.values() if (shown := shown_rollout(state))],
        }
        point = _point(reading, last, first, edges)
        point["waiting"] = sum(version["waiting"] for version in versions)  # as the page shows them
        return StatusSnapshot(now=as_json(now), point=as_json(point))

    def _keep(self, reading: Reading) -> tuple[Reading, Reading]:
        """Store a reading. Return the previous one and the window's first; both are itself at first."""
        while self._readings and reading.time - self._readings[0].time > WINDOW_SECONDS + 1:
            self._readings.popleft()
        last = self._readings[-1] if self._readings else reading
        self._readings.append(reading)
        return last, self._readings[0]

    def _gateway(self, reading: Reading, first: Reading, process: Mapping[str, float]) -> dict[str, Any]:
        spent = {CPU: reading.cpu_seconds - first.cpu_seconds}
        return {
            "backend_up": bool(value(self._metrics.backend_up)),
            "waiting_for": self._reconciler.view.waiting_for,
            "started": process.get("process_start_time_seconds"),
            "memory_bytes": process.get("process_resident_memory_bytes"),
            "cpu": per_second(spent, reading.time - first.time).get(CPU, 0.0),
        }

    def _answers(self) -> dict[str, float]:
        answers: dict[str, float] = {}
        for sample in samples(self._metrics.http_requests):
            if sample.labels["route"] == self._route and sample.name.endswith("_total"):
                kind = _kind(sample.labels["code"])
                answers[kind] = answers.get(kind, 0.0) + sample.value
        return answers

    def _rejected(self) -> dict[str, float]:
        counters = (sample for sample in samples(self._metrics.rejected) if sample.name.endswith("_total"))
        return {sample.labels["reason"]: sample.value for sample in counters}

    def _drift_scores(self) -> Drift:
        scores: dict[tuple[str, str], dict[str, float]] = {}
        for sample in samples(self._metrics.models.drift_score):
            version = sample.labels["model"], sample.labels["version"]
            scores.setdefault(version, {})[sample.labels["kind"]] = sample.value
        return scores


def _point(reading: Reading, last: Reading, first: Reading, edges: Sequence[float]) -> dict[str, Any]:
    """Return one point of the plots."""
    seconds = reading.time - last.time
    new = {target: now.since(last.versions.get(target)) for target, now in reading.versions.items()}
    window = [now.since(first.versions.get(target)) for target, now in reading.versions.items()]
    batches = sum(each.batches for each in new.values())
    return {
        "time": time.time(),
        "rates": per_second(grown(reading.answers, last.answers), seconds),
        "quantiles": quantiles_ms(edges, [each.latency for each in window]),
        "heat": together([each.latency for each in new.values()]),
        "sizes": together([each.sizes for each in new.values()]),
        "batch": sum(each.items for each in new.values()) / batches if batches else None,
        "versions": per_second({str(target): sum(each.outcomes.values()) for target, each in new.items()}, seconds),
    }


def _edges(model_versions: Sequence[ModelVersion]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the upper edges of the buckets of latencies and of batch sizes."""
    if not model_versions:
        return (), ()
    metrics = model_versions[0].metrics
    return edges_of(metrics.seconds["success"]), edges_of(metrics.batch_size)


def _kind(code: str) -> str:
    """Return the kind of a status code: an answer, or who caused the failure."""
    if code == "429":
        return "overload"
    if code == "499":
        return "cancelled"
    return {"2": "ok", "4": "client_error"}.get(code[0], "server_error")
