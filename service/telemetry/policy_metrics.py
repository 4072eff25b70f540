"""Exports each model's traffic weights, labels and rollout events as metrics."""

from collections.abc import Mapping

from service.domain.model_state import ModelState
from service.domain.rollout import Rollout
from service.telemetry.metric_labels import RolloutEvent
from service.telemetry.metrics import Metrics

_EVENTS: Mapping[str, RolloutEvent] = {
    "running": "resumed",
    "paused": "paused",
    "succeeded": "succeeded",
    "rolled_back": "rolled_back",
    "aborted": "aborted",
}


class PolicyMetrics:
    """Keeps the metrics equal to the state that requests see."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._weights: set[tuple[str, str]] = set()
        self._labels: set[tuple[str, str, str]] = set()

    def show(self, models: Mapping[str, ModelState]) -> None:
        """Export the weights and labels of these states, and no others."""
        weights = {
            (model, version): weight / 100
            for model, state in models.items()
            if state.policy is not None
            for version, weight in state.policy.weights.items()
        }
        labels = {(model, label, version) for model, state in models.items() for label, version in state.labels.items()}
        for gone in self._weights - weights.keys():
            self._metrics.models.traffic_weight.remove(*gone)
        for gone_label in self._labels - labels:
            self._metrics.models.label_info.remove(*gone_label)
        for of_version, weight in weights.items():
            self._metrics.models.traffic_weight.labels(*of_version).set(weight)
        for label in labels:
            self._metrics.models.label_info.labels(*label).set(1)
        self._weights, self._labels = set(weights), labels
        for model in models:
            for event in RolloutEvent.__args__:  # type: ignore[attr-defined]
                self._metrics.models.rollout_events.labels(model, event)  # at 0, so that a rate sees the first event

    def count(self, before: ModelState, after: ModelState) -> None:
        """Count the rollout event, if any, of a change that this gateway made."""
        if after.rollouts and (event := _event(before.rollouts, after.rollouts[-1])) is not None:
            self._metrics.models.rollout_events.labels(after.model, event).inc()


def _event(before: tuple[Rollout, ...], now: Rollout) -> RolloutEvent | None:
    if not before or before[-1].id != now.id:
        return "started"
    if before[-1].state != now.state:
        return _EVENTS[now.state]
    return "stepped" if before[-1].step != now.step else None
