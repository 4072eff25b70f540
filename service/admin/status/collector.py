"""Collects what the status page shows, from the metrics and the versions, as JSON."""

import asyncio
import json
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.process_collector import ProcessCollector

from service.admin.status.broadcaster import StatusSnapshot
from service.admin.status.readings import VersionReading, edges_of, per_second, quantiles_ms, samples, together, value
from service.domain.backend import Target
from service.domain.model_state import ModelState
from service.domain.rollout import Rollout
from service.errors.reason import Reason
from service.persistence.membership import Membership
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler
from service.telemetry.metrics import Metrics

# Quantiles of a single second would be too restless to read.
WINDOW_SECONDS = 10.0
SHOW_ENDED_SECONDS = 3600.0


@dataclass
class Reading:
    """The counters at one time."""

    time: float  # time.monotonic()
    answers: Mapping[str, float]  # requests by kind of answer
    rejected: Mapping[str, float]
    process: Mapping[str, float]  # CPU seconds, memory, start
    versions: dict[Target, VersionReading] = field(default_factory=dict)

    def since(self, then: "Reading") -> dict[Target, VersionReading]:
        """Return what each version counted since another reading."""
        return {target: now.since(then.versions.get(target)) for target, now in self.versions.items()}


class StatusCollector:
    """Makes the status page's snapshots."""

    def __init__(
        self,
        reconciler: Reconciler,
        registry: Registry,
        membership: Membership,
        metrics: Metrics,
        route: str,
        facts: Mapping[str, Any],
    ) -> None:
        self._reconciler = reconciler
        self._registry = registry
        self._membership = membership
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
        reading = Reading(time.monotonic(), self._answers(), self._rejected(), process)
        for model_version in model_versions:
            reading.versions[model_version.target] = VersionReading.of(model_version.metrics)
            await asyncio.sleep(0)
        last, first = self._keep(reading)
        seconds, window = reading.time - first.time, reading.since(first)
        edges = edges_of(model_versions[0].metrics.seconds["success"]) if model_versions else ()
        sizes = edges_of(model_versions[0].metrics.batch_size) if model_versions else ()
        versions: list[dict[str, Any]] = []
        reasons: list[Reason] = []  # of each version
        for model_version in model_versions:
            target = model_version.target
            state = self._registry.models.get(target.model, ModelState(target.model))
            status = _version_status(model_version, state, window[target], seconds, edges)
            versions.append({**status, "drift": drift[target.model, target.version]})
            reasons.append(model_version.shown_reason)
            await asyncio.sleep(0)
        now = {
            "gateway": {**self._facts, **self._gateway(reading, first)},
            "edges": edges,
            "sizes": sizes,
            "rejected": per_second(reading.rejected, seconds, first.rejected),
            "versions": versions,
            "rollouts": [
                _rollout_status(name, state.rollouts[-1])
                for name, state in self._registry.models.items()
                if state.rollouts and _is_shown(state.rollouts[-1])
            ],
        }
        point = {
            **_point(reading, last),
            "quantiles": quantiles_ms(edges, together(window.values()).latency),
            "waiting": sum(version["waiting"] for version in versions),  # as the page shows them
        }
        waiting_for, names = self._reconciler.view.waiting_for, self._membership.gateways
        plain, detailed = (
            as_json(_told(now, waiting_for, reasons, names, may_read=may_read)) for may_read in (False, True)
        )
        return StatusSnapshot(now=plain, detailed_now=detailed, point=as_json(point))

    def _keep(self, reading: Reading) -> tuple[Reading, Reading]:
        """Store a reading. Return the previous one and the window's first; both are itself at first."""
        while self._readings and reading.time - self._readings[0].time > WINDOW_SECONDS + 1:
            self._readings.popleft()
        self._readings.append(reading)
        return self._readings[max(len(self._readings) - 2, 0)], self._readings[0]

    def _gateway(self, reading: Reading, first: Reading) -> dict[str, Any]:
        rates = per_second(reading.process, reading.time - first.time, first.process)
        return {
            "backend_up": bool(value(self._metrics.backend_up)),
            "started": reading.process.get("process_start_time_seconds"),
            "memory_bytes": reading.process.get("process_resident_memory_bytes"),
            "cpu": rates.get("process_cpu_seconds_total", 0.0),
        }

    def _answers(self) -> Mapping[str, float]:
        answers: dict[str, float] = defaultdict(float)
        for sample in samples(self._metrics.http_requests):
            if sample.labels["route"] == self._route:
                answers[_kind(sample.labels["code"])] += sample.value
        return answers

    def _rejected(self) -> Mapping[str, float]:
        return {sample.labels["reason"]: sample.value for sample in samples(self._metrics.rejected)}

    def _drift_scores(self) -> Mapping[tuple[str, str], Mapping[str, float]]:
        scores: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for sample in samples(self._metrics.models.drift_score):
            scores[sample.labels["model"], sample.labels["version"]][sample.labels["kind"]] = sample.value
        return scores


def _point(reading: Reading, last: Reading) -> dict[str, Any]:
    """Return one point of the plots: what was counted since the last reading."""
    seconds, new = reading.time - last.time, reading.since(last)
    whole = together(new.values())
    return {
        "time": time.time(),
        "rates": per_second(reading.answers, seconds, last.answers),
        "heat": whole.latency,
        "sizes": whole.sizes,
        "batch": whole.mean_batch,
        "versions": per_second({str(target): sum(each.outcomes) for target, each in new.items()}, seconds),
    }


def _version_status(
    model_version: ModelVersion, state: ModelState, counted: VersionReading, seconds: float, edges: Sequence[float]
) -> dict[str, Any]:
    """Return a version's status, and the rates of what was `counted` within `seconds`."""
    target, metrics, policy = model_version.target, model_version.metrics, state.policy
    rates = per_second(dict(zip(metrics.requests, counted.outcomes, strict=True)), seconds)
    return {
        "name": str(target),
        "model": target.model,
        "version": target.version,
        "state": model_version.state,
        "weight": 0.0 if policy is None else policy.weights.get(target.version, 0.0),
        "shadow": 0.0 if policy is None else policy.shadows.get(target.version, 0.0),
        "labels": sorted(label for label, version in state.labels.items() if version == target.version),
        "requests": sum(rates.values()),
        "outcomes": rates,
        "quantiles": quantiles_ms(edges, counted.latency),
        "batch": counted.mean_batch,
        "limit": value(metrics.batch_limit),
        "fixed_ms": value(metrics.batch_model_fixed) * 1000,
        "per_item_ms": value(metrics.batch_model_per_item) * 1000,
        "waiting": value(metrics.queue_depth),
        "oldest_ms": value(metrics.queue_oldest_age) * 1000,
        "in_flight": value(metrics.in_flight_batches),
        "workers": {name: num for name, child in metrics.workers.items() if (num := value(child))},
        "num_workers": model_version.num_workers,
        "input": model_version.contract.shown.get("input"),  # width and height; None until it is known
        "is_cut_off": model_version.batcher.is_cut_off,
    }


def _told(
    now: Mapping[str, Any], waiting_for: Reason, reasons: Sequence[Reason], names: Sequence[str], *, may_read: bool
) -> dict[str, Any]:
    """Return the status with the reasons and names for a caller who may read details, or may not."""
    versions = [
        {**version, "reason": reason.told(may_read=may_read)}
        for version, reason in zip(now["versions"], reasons, strict=True)
    ]
    shown = list(names) if may_read else [name.rpartition("-")[2] for name in names]  # they begin with their hosts'
    gateway = {
        **now["gateway"],
        "waiting_for": waiting_for.told(may_read=may_read),
        "name": shown[0],
        "others": shown[1:],
    }
    return {**now, "gateway": gateway, "versions": versions}


def _is_shown(rollout: Rollout) -> bool:
    """Return whether a model's last rollout is active or has ended of late, so that its end is not missed."""
    return rollout.is_active or time.time() - rollout.ended < SHOW_ENDED_SECONDS


def _rollout_status(model: str, rollout: Rollout) -> dict[str, Any]:
    return {
        "model": model,
        "id": rollout.id,
        "version": rollout.spec.version,
        "stable": rollout.stable,
        "state": rollout.state,
        "step": rollout.step,
        "steps": rollout.spec.steps,
        "reason": rollout.reason,
    }


def _kind(code: str) -> str:
    """Return the kind of a status code: an answer, or who caused the failure."""
    kinds = {"429": "overload", "499": "cancelled", "2": "ok", "4": "client_error"}
    return kinds.get(code) or kinds.get(code[0], "server_error")


def as_json(document: Mapping[str, Any]) -> bytes:
    """Return JSON with rounded numbers."""
    return json.dumps(_rounded(document), separators=(",", ":")).encode()


def _rounded(part: Any) -> Any:
    if isinstance(part, float):
        return int(part) if part.is_integer() else round(part, 4)
    if isinstance(part, Mapping):
        return {key: _rounded(each) for key, each in part.items()}
    if isinstance(part, list | tuple):
        return [_rounded(each) for each in part]
    return part
