"""What an operator may have done to a rollout: begin it, hold it, hurry it, end it."""

import time
from collections.abc import Callable
from dataclasses import replace

from service.admin.rollout_controller import RolloutController
from service.admin.versions import AdminContext, Operations
from service.domain.backend import Target
from service.domain.model_state import Entry, ModelState
from service.domain.rollout import Rollout, RolloutSpec
from service.errors.admin import (
    RolloutActive,
    RolloutEnded,
    RolloutNotFound,
    RolloutRefused,
    VersionNotReady,
)
from service.errors.request import VersionNotFound
from service.persistence.registry import Registry
from service.serving.reconciler import Reconciler


class RolloutOperations:
    """Changes rollouts; what they do by themselves is the rollout_controller's."""

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

        rollout = await self._change(Entry(asked.actor, "rollout", model, spec.version, asked.reason), asked, edit)
        self._rollout_controller.begin(model, rollout)
        return rollout

    async def pause(self, asked: AdminContext, model: str, number: int) -> Rollout:
        """Stay at the step; the guards go on looking."""
        return await self._to(asked, "pause", model, number, lambda rollout: replace(rollout, state="paused"))

    async def resume(self, asked: AdminContext, model: str, number: int) -> Rollout:
        """Go on with the steps."""
        return await self._to(asked, "resume", model, number, lambda rollout: replace(rollout, state="running"))

    async def promote(self, asked: AdminContext, model: str, number: int) -> Rollout:
        """Give the new version everything now."""

        def promoted(rollout: Rollout) -> Rollout:
            self._require_ready(model, rollout.spec.version)
            return replace(rollout, step=len(rollout.spec.steps) - 1, state="succeeded", reason="promoted by hand")

        return await self._to(asked, "promote", model, number, promoted)

    async def abort(self, asked: AdminContext, model: str, number: int) -> Rollout:
        """Give everything back to the stable version."""
        why = "aborted by hand"
        return await self._to(asked, "abort", model, number, lambda r: replace(r, state="aborted", reason=why))

    def find(self, model: str, number: int) -> Rollout:
        """Return a rollout, whatever has become of it.

        Raises:
            ModelNotFound, RolloutNotFound: there is none.
        """
        return _found(self._registry.state(model), number)

    async def _to(
        self, asked: AdminContext, action: str, model: str, number: int, move: Callable[[Rollout], Rollout]
    ) -> Rollout:
        def edit(state: ModelState) -> ModelState:
            rollout = _found(state, number)
            if not rollout.is_active:
                raise RolloutEnded(model, number, rollout.state)
            return state.rolled(move(rollout))

        return await self._change(Entry(asked.actor, action, model, str(number), asked.reason), asked, edit)

    async def _change(self, entry: Entry, asked: AdminContext, edit: Callable[[ModelState], ModelState]) -> Rollout:
        change = self._operations.noted(entry, lambda: self._registry.change(entry, asked.revision, edit))
        return (await change).rollouts[-1]

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
