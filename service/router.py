"""From what a request names to the one version that answers it."""

from collections.abc import Sequence

from service.deployment import Deployment
from service.errors import NotReady
from service.fleet import Fleet
from service.request_errors import ModelNotFound, ParameterInvalid, VersionNotFound


class Router:
    """Chooses the version of a request; reads the fleet's current view, waits for nothing."""

    def __init__(self, fleet: Fleet, default_model: str | None) -> None:
        self._fleet = fleet
        self._default_model = default_model

    def default_models(self) -> Sequence[str]:
        """Return the model of a request that names none; all of them if there are several and none is the default.

        Raises:
            NotReady: no model is known yet.
        """
        models = self._fleet.view.deployments
        if not models:
            raise NotReady(self._fleet.view.waiting_for)
        return sorted(models) if self._default_model is None else [self._default_model]

    def route(self, model: str | None, version: str | None) -> Deployment:
        """Return the ready version that `model` and `version` mean; None means the default of each.

        Raises:
            ModelNotFound, VersionNotFound, ParameterInvalid: the request names nothing that is served.
            NotReady: it does, and that is not ready.
        """
        deployment = self.find(model, version)
        deployment.require_ready()
        return deployment

    def find(self, model: str | None, version: str | None = None) -> Deployment:
        """Return the version that is meant, ready or not; raises as `route` does."""
        name, *others = self.default_models() if model is None else [model]
        if others:
            raise ParameterInvalid(f"several models are served, name one with ?model=: {', '.join([name, *others])}")
        models = self._fleet.view.deployments
        if name not in models:
            if not models:
                raise NotReady(self._fleet.view.waiting_for)
            raise ModelNotFound(name, sorted(models))
        versions = models[name]
        if version is None:
            return next(iter(versions.values()))
        if version not in versions:
            raise VersionNotFound(name, version, list(versions))
        return versions[version]
