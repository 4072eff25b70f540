"""What an operator does to a rollout: start, pause, resume, promote or abort it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from service.admin.rollout_controller import RolloutController
from service.admin.versions import AdminContext, Operations
from service.domain.backend import Target
from service.domain.model_state import ModelState
from service.domain.rollout import Rollout, RolloutSpec
from service.errors.admin import RolloutActive, RolloutEnded, RolloutNotFound, RolloutRefused, VersionNotReady
from service.errors.request import VersionNotFound
from service.persistence.registry import Registry
from service.serving.reconciler import Reconciler

MOVES: Mapping[str, Callable[[Rollout], Rollout]] = {
    "pause": lambda rollout: replace(rollout, state="paused"),
    "resume": lambda rollout: replace(rollout, state="running"),
    "promote": lambda rollout: replace(
        rollout, step=len(rollout.spec.steps) - 1, state="succeeded", reason="promoted by hand"
    ),
    "abort": lambda rollout: replace(rollout, state="aborted", reason="aborted by hand"),
}


class RolloutOperations:
    """Changes rollouts for an operator; the rollout controller drives them."""

    def __init__(
        self, operations: Operations, reconciler: Reconciler, registry: Registry, rollout_controller: RolloutController
    ) -> None:
        self._rollout_controller = rollout_controller
        self._operations = operations
        self._reconciler = reconciler
        self._registry = registry

    async def start(self, asked: AdminContext, model: str, spec: RolloutSpec) -> Rollout:
        """Begin to give a version more and more of the traffic; one other version must have all of it."""

        def edit(state: ModelState) -> ModelState:
            stable = self._require_start(state, spec)
            number = state.rollouts[-1].id + 1 if state.rollouts else 1
            return state.rolled(Rollout(number, spec, stable, started=time.time()))

        asked = replace(asked, entry=replace(asked.entry, subject=spec.version))
        rollout = (await self._operations.change(asked, edit)).rollouts[-1]
        self._rollout_controller.begin(model, rollout)
        return rollout

    async def move(self, asked: AdminContext, model: str, number: int) -> Rollout:
        """Do to a rollout what is asked for, one of `MOVES`."""

        def edit(state: ModelState) -> ModelState:
            rollout = _found(state, number)
            if not rollout.is_active:
                raise RolloutEnded(model, number, rollout.state)
            if asked.entry.action == "promote":
                self._require_ready(model, rollout.spec.version)
            return state.rolled(MOVES[asked.entry.action](rollout))

        return (await self._operations.change(asked, edit)).rollouts[-1]

    def find(self, model: str, number: int) -> Rollout:
        """Return a rollout, whatever has become of it.

        Raises:
            ModelNotFound, RolloutNotFound: there is none.
        """
        return _found(self._registry.state(model), number)

    def _require_ready(self, model: str, version: str) -> None:
        model_version = self._reconciler.find(Target(model, version))
        if model_version is None or model_version.state != "ready":
            raise VersionNotReady(model, version, "missing" if model_version is None else model_version.state)

    def _require_start(self, state: ModelState, spec: RolloutSpec) -> str:
        """Return the version that has all of the traffic; raises what is in the way."""
        if state.rollout is not None:
            raise RolloutActive(state.model, state.rollout.id)
        if spec.version not in state.wanted:
            raise VersionNotFound(state.model, spec.version, list(state.wanted))
        self._require_ready(state.model, spec.version)
        stable = None if state.policy is None else state.policy.sole
        if stable is None:
            raise RolloutRefused("A rollout begins where one version has all the traffic; it is divided at present")
        if stable == spec.version:
            raise RolloutRefused(f"{spec.version} has all the traffic already")
        return stable


def _found(state: ModelState, number: int) -> Rollout:
    for rollout in state.rollouts:
        if rollout.id == number:
            return rollout
    raise RolloutNotFound(state.model, number)
