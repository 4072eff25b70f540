"""Drives the rollouts: every gateway counts, and the one that holds the lease decides."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from service.domain.backend import Target
from service.domain.model_state import Entry, ModelState
from service.domain.rollout import Counts, Progress, Rollout, explained, stepped
from service.domain.sequential_test import NONE, Sample
from service.errors.admin import StateUnavailable
from service.persistence.leader_lease import Lease
from service.persistence.registry import Registry
from service.persistence.rollout_store import RolloutStore
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler
from service.serving.shadow_traffic import Shadows

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
# A new version that has been out of order for so long will not get better by waiting.
GONE_SECONDS = 15.0
# Time without a leader does not count as time that a step has lasted.
LONGEST_TICK_SECONDS = 5.0
ACTOR = "rollout"


class RolloutController:
    """Counts what rollouts are judged by, and carries out what follows from it."""

    def __init__(
        self,
        reconciler: Reconciler,
        registry: Registry,
        shadows: Shadows,
        store: RolloutStore,
        lease: Lease,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reconciler = reconciler
        self._registry = registry
        self._shadows = shadows
        self._store = store
        self._lease = lease
        self._clock = clock
        self._baselines: dict[tuple[str, int], Counts] = {}
        self._unready_since: dict[tuple[str, int], float] = {}
        self._last_tick: dict[tuple[str, int], float] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look at the rollouts."""
        await self._lease.start()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Stop; the next leader goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._lease.close()

    def begin(self, model: str, rollout: Rollout) -> None:
        """Count from now on for a rollout that has just begun."""
        self._counts(model, rollout)

    async def tick(self) -> None:
        """Count, and decide if this gateway is the leader."""
        self._shadows.forget_unloaded()
        active = {m: s.rollout for m, s in self._registry.models.items() if s.rollout is not None}
        for model, rollout in active.items():
            counts = self._counts(model, rollout)
            if counts is not None:
                await self._store.database.call(self._store.write_counts, model, rollout.id, counts)
        for kept in (self._baselines, self._last_tick, self._unready_since):
            for key in [(m, number) for m, number in kept if m not in active or active[m].id != number]:
                del kept[key]
        if active and not self._lease.is_known:  # the database was not open when the lease was first asked for
            await self._lease.renew()
        if self._lease.is_held:
            for model, rollout in active.items():
                await self._drive(model, rollout)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self.tick()
            except StateUnavailable as error:
                logger.warning("rollouts wait: %s", error)
            except Exception:  # the one task that must survive whatever it meets; the cause is in the log
                logger.exception("looking after the rollouts failed; it goes on")

    async def _drive(self, model: str, rollout: Rollout) -> None:
        key = model, rollout.id
        now = self._clock()
        seconds = min(now - self._last_tick.get(key, now), LONGEST_TICK_SECONDS)
        self._last_tick[key] = now
        counts = await self._store.database.call(self._store.counts, model, rollout.id)
        before = await self._store.database.call(self._store.progress, model, rollout.id)
        progress = (before or Progress()).after(rollout, counts, seconds)
        # First what is known, then what follows from it: after a crash in between, it follows again.
        await self._store.database.call(self._store.write_progress, model, rollout.id, progress)
        decided, action, why = _decided(rollout, progress)
        if decided is None and (gone := self._gone(model, rollout, now)):
            # Anybody may read a rollout's reason; the event, for readers, has the version's own.
            public = f"{rollout.spec.version} is {gone.state} for more than {GONE_SECONDS:g} s"
            decided, action = replace(rollout, state="rolled_back", reason=public), "roll_back"
            why = f"{public}: {gone.reason}"
        if decided is not None:
            edit = partial(_moved, rollout=rollout, decided=decided)
            await self._registry.change(Entry(ACTOR, action, model, str(rollout.id)), None, edit, why)
            logger.info("%s: rollout %d of %s: %s", model, rollout.id, rollout.spec.version, why)
            if not decided.is_active:
                await self._store.database.call(self._store.forget, model, rollout.id)

    def _gone(self, model: str, rollout: Rollout, now: float) -> ModelVersion | None:
        """Return the new version if it has not been there for too long; None if it is, or may still come."""
        new = self._reconciler.find(Target(model, rollout.spec.version))
        key = model, rollout.id
        if new is None or new.state not in {"failed", "unavailable"}:
            self._unready_since.pop(key, None)
            return None
        return new if now - self._unready_since.setdefault(key, now) > GONE_SECONDS else None

    def _counts(self, model: str, rollout: Rollout) -> Counts | None:
        """Return what this gateway has counted since it first saw the rollout; None while it lacks a version."""
        now = self._counted(model, rollout)
        return None if now is None else now - self._baselines.setdefault((model, rollout.id), now)

    def _counted(self, model: str, rollout: Rollout) -> Counts | None:
        new = self._reconciler.find(Target(model, rollout.spec.version))
        old = self._reconciler.find(Target(model, rollout.stable))
        if new is None or old is None:
            return None
        for version in (new, old):
            version.counts.slow_seconds = rollout.spec.slow_ms / 1000
        compared = self._shadows.between(model, rollout.stable, rollout.spec.version)
        return Counts(
            num_new=new.counts.num_judged,
            errors_new=Sample(new.counts.num_errors, new.counts.num_judged),
            errors_old=Sample(old.counts.num_errors, old.counts.num_judged),
            slow_new=Sample(new.counts.num_slow, new.counts.num_judged),
            slow_old=Sample(old.counts.num_slow, old.counts.num_judged),
            disagreements=Sample(compared.num_items - compared.num_same, compared.num_items) if compared else NONE,
            wrong_new=Sample(new.counts.num_judged_wrong, new.counts.num_judged_labels),
            wrong_old=Sample(old.counts.num_judged_wrong, old.counts.num_judged_labels),
        )


def _decided(rollout: Rollout, progress: Progress) -> tuple[Rollout | None, str, str]:
    """Return what the rollout becomes, None if nothing changes, what to call that, and why."""
    if (guard := progress.broken(rollout.spec)) is not None:
        why = explained(guard, rollout.spec, progress.counted, progress.evidence[guard].e_value)
        return replace(rollout, state="rolled_back", reason=why), "roll_back", why
    if rollout.state != "running" or not progress.is_enough(rollout.spec):
        return None, "", ""
    why = f"{progress.step_requests} requests in {progress.step_seconds:.0f} s, and no guard broke"
    return stepped(rollout), "step", why


def _moved(state: ModelState, rollout: Rollout, decided: Rollout) -> ModelState:
    """Return the state with what was decided, unless somebody else did something to the rollout meanwhile."""
    return state.rolled(decided) if state.rollout == rollout else state
