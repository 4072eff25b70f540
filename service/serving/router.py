"""Chooses the version that answers a request."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from service.domain.traffic import NUM_SLOTS, Policy, WeightedSplitter, slot_of_key
from service.errors.admin import LabelNotFound
from service.errors.gateway import NotReady
from service.errors.reason import open_reason
from service.errors.request import ModelNotFound, ParameterInvalid, VersionNotFound
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler

# The slots of a version that is not ready are neighbours. Multiplied by a number that is coprime to NUM_SLOTS, they
# scatter evenly over the versions that are ready.
SCATTER = 6_367


class Router:
    """Chooses the version of a request from memory, without waiting."""

    def __init__(self, reconciler: Reconciler, registry: Registry, default_model: str | None) -> None:
        self._reconciler = reconciler
        self._registry = registry
        self._default_model = default_model
        self._decks: defaultdict[str, WeightedSplitter] = defaultdict(WeightedSplitter)

    def default_models(self) -> Sequence[str]:
        """Return the default model; without that setting, all models.

        Raises:
            NotReady: no model is known yet.
        """
        models = self._models()
        return sorted(models) if self._default_model is None else [self._default_model]

    def route(
        self, model: str | None, version: str | None, label: str | None, headers: Mapping[bytes, bytes]
    ) -> ModelVersion:
        """Return the ready version that a request names, or that has its label, or that its traffic policy draws.

        Raises:
            ModelNotFound, VersionNotFound, LabelNotFound, ParameterInvalid: it names nothing that is served.
            NotReady: the version is not ready.
        """
        name = self._name(model)
        if label is not None:
            if version is not None:
                raise ParameterInvalid("version and label are both given; give only one of them")
            version = self._labelled(name, label)
        if version is None:
            return self._by_traffic(name, headers)
        versions = self.versions(name)
        if version not in versions:
            raise VersionNotFound(name, version, list(versions))
        model_version = versions[version]
        model_version.require_ready()
        return model_version

    def versions(self, model: str) -> Mapping[str, ModelVersion]:
        """Return the versions of a model, ready or not, most traffic first.

        Raises:
            ModelNotFound: there is no such model.
            NotReady: no model is known yet.
        """
        models = self._models()
        if model not in models:
            raise ModelNotFound(model, sorted(models))
        return models[model]

    def require_answers(self, model: str) -> None:
        """Raise NotReady unless a version with traffic is ready, and none of them loads for the first time.

        While one does, the others would take over its share, and callers with a routing key would change version twice.
        """
        model_versions = self.versions(model)
        policy = self._registry.models[model].policy
        for version in () if policy is None else policy.owned:
            if version in model_versions and not model_versions[version].was_tried:
                model_versions[version].require_ready()
        self._by_traffic(model, {})

    def _models(self) -> Mapping[str, Mapping[str, ModelVersion]]:
        view = self._reconciler.view
        if not view.model_versions:
            raise NotReady(view.waiting_for)
        return view.model_versions

    def _name(self, model: str | None) -> str:
        if model is not None:
            return model
        name, *others = self.default_models()
        if others:
            raise ParameterInvalid(f"several models are served, name one with ?model=: {', '.join([name, *others])}")
        return name

    def _labelled(self, model: str, label: str) -> str:
        self.versions(model)
        labels = self._registry.models[model].labels
        if label not in labels:
            raise LabelNotFound(model, label, sorted(labels))
        return labels[label]

    def _by_traffic(self, model: str, headers: Mapping[bytes, bytes]) -> ModelVersion:
        model_versions = self.versions(model)
        policy = self._registry.models[model].policy
        if policy is None:
            raise NotReady(open_reason(f"no version of {model} has traffic yet"))
        if policy.sole is not None:
            slot, version = 0, policy.sole
        else:
            slot = self._slot(model, policy, headers)
            version = policy.table[slot]
        model_version = model_versions.get(version)
        if model_version is not None and model_version.is_answering:
            return model_version
        return _instead(model, policy, model_versions, slot)

    def _slot(self, model: str, policy: Policy, headers: Mapping[bytes, bytes]) -> int:
        key = None if policy.sticky_key is None else headers.get(policy.sticky_key)
        if key:  # some proxies send an empty one for unknown callers
            return slot_of_key(model, key)
        return self._decks[model].draw()


def _instead(model: str, policy: Policy, model_versions: Mapping[str, ModelVersion], slot: int) -> ModelVersion:
    """Return the version that replaces one that is not ready, by the weights of those that are."""
    ready = {
        version: weight
        for version, weight in policy.weights.items()
        if (model_version := model_versions.get(version)) is not None and model_version.is_answering
    }
    if not ready:
        for version in policy.owned:
            if version in model_versions:
                model_versions[version].require_ready()
                return model_versions[version]  # its circuit breaker is open, as its batcher will say
        raise NotReady(open_reason(f"no version of {model} that has traffic is loaded"))
    place = (slot * SCATTER % NUM_SLOTS) / NUM_SLOTS * sum(ready.values())
    for version, weight in ready.items():
        place -= weight
        if place < 0:
            return model_versions[version]
    return model_versions[version]
