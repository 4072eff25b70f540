"""The versions in service, as requests read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.domain.model_state import ModelState
from service.errors.reason import Reason
from service.serving.model_version import ModelVersion


@dataclass(frozen=True)
class ServedVersions:
    """The versions in service by model, most traffic first; never changed, only replaced."""

    model_versions: Mapping[str, Mapping[str, ModelVersion]]
    waiting_for: Reason  # why a version is not ready; its texts are empty when all are


def by_model(versions: Sequence[ModelVersion], models: Mapping[str, ModelState]) -> dict[str, dict[str, ModelVersion]]:
    """Return versions by model and version, most traffic first; set the role in the metrics of each."""

    def most_traffic_first(version: ModelVersion) -> tuple[str, float, bool, str]:
        state = models.get(version.target.model)
        has_label = state is not None and version.target.version in state.labels.values()
        return version.target.model, -weight(version, models), not has_label, version.target.version

    found: dict[str, dict[str, ModelVersion]] = {}
    for version in sorted(versions, key=most_traffic_first):
        found.setdefault(version.target.model, {})[version.target.version] = version
        if (state := models.get(version.target.model)) is not None:
            version.metrics.play(state.role(version.target.version))
    return found


def weight(version: ModelVersion, models: Mapping[str, ModelState]) -> float:
    """Return the share of its model's traffic that a version has, in percent."""
    state = models.get(version.target.model)
    return 0.0 if state is None or state.policy is None else state.policy.weights.get(version.target.version, 0.0)
