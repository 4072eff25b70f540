"""What the gateway can answer now: for /readyz, and for a gateway that takes over from another."""

from collections.abc import Collection

from service.errors.reason import Reason
from service.serving.reconciler import Reconciler
from service.serving.router import Router


class Readiness:
    """Reads it from the versions in service."""

    def __init__(self, reconciler: Reconciler, router: Router) -> None:
        self._reconciler = reconciler
        self._router = router

    @property
    def waiting_for(self) -> Reason:
        """Return why a version is not ready; its texts are empty when all are."""
        return self._reconciler.view.waiting_for

    def require(self) -> None:
        """Raise NotReady unless the default models answer."""
        for model in self._router.default_models():
            self._router.require_answers(model)

    def versions(self) -> Collection[str]:
        """Return the versions that answer, by their names."""
        served = self._reconciler.view.model_versions.values()
        return [str(each.target) for versions in served for each in versions.values() if each.state == "ready"]
