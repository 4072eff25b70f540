"""The page's JSON for versions and rollouts."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from service.admin.status.readings import Buckets, VersionReading, quantile, together, value
from service.domain.model_state import ModelState
from service.serving.model_version import ModelVersion

SHARES = (0.5, 0.95, 0.99)


def shown_version(
    model_version: ModelVersion,
    state: ModelState,
    counted: VersionReading,
    seconds: float,
    edges: Sequence[float],
    drift: Mapping[str, float],
) -> dict[str, Any]:
    """Return a version's status, and the rates of what was `counted` within `seconds`."""
    target, metrics, policy = model_version.target, model_version.metrics, state.policy
    rates = per_second(counted.outcomes, seconds)
    return {
        "name": str(target),
        "model": target.model,
        "version": target.version,
        "state": model_version.state,
        "reason": model_version.reason,
        "weight": 0.0 if policy is None else policy.weights.get(target.version, 0.0),
        "shadow": 0.0 if policy is None else policy.shadows.get(target.version, 0.0),
        "labels": sorted(label for label, version in state.labels.items() if version == target.version),
        "requests": sum(rates.values()),
        "outcomes": rates,
        "quantiles": quantiles_ms(edges, [counted.latency]),
        "batch": counted.items / counted.batches if counted.batches else None,
        "limit": value(metrics.batch_limit),
        "fixed_ms": value(metrics.batch_model_fixed) * 1000,
        "per_item_ms": value(metrics.batch_model_per_item) * 1000,
        "waiting": value(metrics.queue_depth),
        "oldest_ms": value(metrics.queue_oldest_age) * 1000,
        "in_flight": value(metrics.in_flight_batches),
        "workers": {name: num for name, child in metrics.workers.items() if (num := value(child))},
        "num_workers": model_version.num_workers,
        "is_cut_off": model_version.batcher.is_cut_off,
        "drift": drift,
    }


def shown_rollout(state: ModelState) -> dict[str, Any] | None:
    """Return the rollout that is in progress, None if there is none."""
    rollout = state.rollout
    if rollout is None:
        return None
    return {
        "model": state.model,
        "id": rollout.id,
        "version": rollout.spec.version,
        "stable": rollout.stable,
        "state": rollout.state,
        "step": rollout.step,
        "steps": rollout.spec.steps,
    }


def per_second(counted: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return the rates per second, without those that are 0."""
    return {name: num / seconds for name, num in counted.items() if num} if seconds else {}


def quantiles_ms(edges: Sequence[float], latencies: Sequence[Buckets]) -> list[float] | None:
    """Return p50, p95 and p99 of all these requests in milliseconds; None without requests."""
    if not latencies:
        return None
    counts = together(latencies)
    found = [quantile(edges, counts, share) for share in SHARES]
    return [seconds * 1000 for seconds in found if seconds is not None] or None


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
