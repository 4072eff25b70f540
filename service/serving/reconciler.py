"""Makes the backend load what the database records as wanted, again and again.

Intent comes first: a change is recorded, then the reconciler carries it out. Of the gateways that share a model server,
the leader alone loads, scales and unloads; the others watch the server. Each version moves in a task of its own, so
that a slow load delays no other version.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from service.config.settings import Settings
from service.domain.archive import StoreError
from service.domain.backend import Backend, ModelControl, Target, VersionStatus
from service.errors.admin import StateUnavailable
from service.errors.gateway import BackendError, BackendTimeout
from service.errors.reason import Reason, joined, open_reason
from service.errors.request import VersionNotFound
from service.persistence.archives.model_store import ModelStore
from service.persistence.leader_lease import Lease
from service.persistence.membership import Membership
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.served_versions import ServedVersions, by_model, weight
from service.serving.store_watcher import ModelStoreWatcher
from service.serving.version_loader import VersionLoader, reason_of, texts_of
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

TIMEOUTS_THAT_MEAN_DOWN = 3


class Reconciler:
    """Keeps every recorded version loaded, checked and ready, through restarts of the backend."""

    def __init__(
        self,
        settings: Settings,
        store: ModelStore,
        backend: Backend,
        control: ModelControl,
        registry: Registry,
        membership: Membership,
        lease: Lease,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._control = control
        self._registry = registry
        self._membership = membership
        self._lease = lease
        self._metrics = metrics
        self._loader = VersionLoader(settings, store, registry, backend, control, metrics)
        self._store = ModelStoreWatcher(settings, store, registry, metrics)
        self._surveyed: Mapping[Target, VersionStatus] = {}
        self._num_timeouts = 0
        self._complaint = ""  # the last one about the store
        self._moves: dict[Target, asyncio.Task[None]] = {}  # loads and scales
        self._retiring: dict[Target, asyncio.Task[None]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._news = asyncio.Event()  # set and replaced after each round and each move
        self.view = ServedVersions({}, open_reason("the gateway is starting"))

    async def start(self) -> None:
        """Begin to reconcile in the background, whether or not the backend is there yet."""
        await self._backend.start()
        await self._control.start()
        await self._membership.start()
        await self._lease.start()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def close(self, drain_seconds: float) -> None:
        """Stop, finish queued and running requests within `drain_seconds`, close the backend and the database."""
        tasks = [task for task in (self._keeper, *self._moves.values(), *self._retiring.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(version.batcher.drain(drain_seconds) for version in self._all()))
        await self._control.close()
        await self._backend.close()
        await self._membership.close()
        await self._lease.close()
        await self._registry.close()

    def find(self, target: Target) -> ModelVersion | None:
        """Return a version in service, ready or not."""
        return self.view.model_versions.get(target.model, {}).get(target.version)

    async def settled(self, target: Target) -> ModelVersion:
        """Carry out the record of a version; return it once it is ready with its number of workers.

        Raises:
            BackendError, StoreError, SelfCheckFailed: why it is not ready.
            VersionNotFound: the record was withdrawn meanwhile.
        """
        self.follow()
        self._wake.set()
        limit_seconds = 2 * self._settings.load_timeout_seconds
        try:
            async with asyncio.timeout(limit_seconds):
                while True:
                    version = self.find(target)
                    if version is None:
                        raise VersionNotFound(target.model, target.version, [])
                    if version.is_settled:
                        return version
                    await self._news.wait()
        except TimeoutError as error:
            raise BackendTimeout(round(limit_seconds * 1000)) from error

    async def retired(self, target: Target) -> None:
        """Return when an unregistered version has answered its requests and is unloaded."""
        self.follow()
        self._wake.set()
        if (task := self._retiring.get(target)) is not None:
            await asyncio.shield(task)

    def follow(self) -> None:
        """Create the recorded versions, and begin to retire the unregistered ones."""
        wanted = {
            Target(model, version): record
            for model, state in self._registry.models.items()
            for version, record in state.wanted.items()
        }
        kept: list[ModelVersion] = []
        for version in self._all():
            record = wanted.get(version.target)
            if version.target in self._retiring:
                wanted.pop(version.target, None)  # created anew once this one is gone
            elif record is None:
                self._membership.begin_drain(version.target)
                self._retiring[version.target] = self._task(self._retire(version))
            elif not version.is_open and version.archive != record.archive and version.target not in self._moves:
                continue  # created anew: the archive was replaced before it could be read
            else:
                version.follow(record)
                del wanted[version.target]
            kept.append(version)
        revision = self._registry.revision
        new = [self._loader.create(record, revision(target.model)) for target, record in wanted.items()]
        self._show([*kept, *new])
        failed = {each.target: each.reason for each in self._all() if each.state == "failed" and self._may_control}
        self._membership.tell(self._registry.models, failed)

    @property
    def _may_control(self) -> bool:
        """Return whether this gateway loads, scales and unloads: it owns the workers or leads the others."""
        return self._settings.backend == "workers" or self._lease.is_held

    def _all(self) -> list[ModelVersion]:
        return [version for versions in self.view.model_versions.values() for version in versions.values()]

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        for tasks in (self._moves, self._retiring):
            for target in [target for target, each in tasks.items() if each is task]:
                del tasks[target]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a version could not be moved; it is tried again", exc_info=error)
        self._tell()
        self._wake.set()

    def _tell(self) -> None:
        """Wake those who wait for a version."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _show(self, shown: Sequence[ModelVersion]) -> None:
        self.view = ServedVersions(by_model(shown, self._registry.models), self.view.waiting_for)

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._look()
            except Exception:  # the one task that must survive whatever it meets; the cause is in the log
                logger.exception("reconciling failed; it goes on")
            self._tell()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.health_interval_seconds):
                    await self._wake.wait()

    async def _look(self) -> None:
        """Read what is wanted and what the backend has, and begin to move what differs."""
        try:
            ready = [version.archive for version in self._all() if version.state == "ready"]
            await self._store.look(ready, is_serving=any(version.is_open for version in self._all()))
            if not self._lease.is_known:
                await self._lease.renew()
        except (StoreError, StateUnavailable) as error:
            if not self._all():
                self._wait_for(texts_of(error))
                return
            if (complaint := reason_of(error)) != self._complaint:
                logger.warning("looking for new archives failed: %s", complaint)
            self._complaint = complaint
        self.follow()
        moving = set(self._moves)  # the survey may show their state before the move ended
        try:
            self._surveyed = await self._control.survey()
        except BackendTimeout as error:
            # A busy server answers late; a server is down only after several timeouts.
            self._num_timeouts += 1
            if self._num_timeouts >= TIMEOUTS_THAT_MEAN_DOWN:
                self._backend_is_down(error)
            return
        except BackendError as error:
            self._backend_is_down(error)
            return
        self._num_timeouts = 0
        self._metrics.backend_up.set(1)
        for version in self._all():
            if version.state != "draining":
                self._look_after(version, self._surveyed.get(version.target), was_moving=version.target in moving)
        self._wait_for(joined(each.named_reason for each in self._all() if each.state != "ready"))

    def _backend_is_down(self, error: BackendError) -> None:
        self._metrics.backend_up.set(0)
        for version in self._all():
            if version.state == "waiting":
                version.wait(reason_of(error), error)
            elif version.target not in self._moves:
                version.become_unavailable(reason_of(error), error)
            version.metrics.show_workers({})
        self._wait_for(error.texts)

    def _look_after(self, version: ModelVersion, status: VersionStatus | None, *, was_moving: bool) -> None:
        if status is not None:
            version.observe(status)
        is_moving = was_moving or version.target in self._moves
        if version.state == "ready" and status is not None and status.num_ready:
            if is_moving:
                return
            if status.num_workers_wanted == version.num_workers <= status.num_ready:
                self._loader.use_workers(version, version.num_workers)
            elif status.num_workers_wanted != version.num_workers and self._may_control and version.may_scale:
                logger.warning("%s has %d workers", version.target, status.num_workers_wanted)
                self._moves[version.target] = self._task(self._loader.scale(version))
        elif version.state in {"ready", "unavailable"} and status is not None and not status.num_ready:
            # The server restarts its workers by itself; until then requests are refused at once.
            if not was_moving:
                version.become_unavailable(f"none of its {status.num_workers_wanted} workers is ready")
        elif not is_moving and version.is_retry_due and self._is_its_turn(version):
            reason = self._membership.failure(version.target, version.revision)
            work = self._loader.bring_up(version, status, may_control=self._may_control, leader_failed=reason)
            self._moves[version.target] = self._task(work)

    def _is_its_turn(self, version: ModelVersion) -> bool:
        """Return whether a version may load: at the start, versions with traffic load first."""
        models = self._registry.models
        return weight(version, models) > 0 or all(each.was_tried for each in self._all() if weight(each, models) > 0)

    async def _retire(self, version: ModelVersion) -> None:
        """Drain a version and have it unloaded, unless it is wanted again meanwhile."""
        target = version.target
        if (move := self._moves.get(target)) is not None:
            await asyncio.wait({move})
        await version.drain(self._settings.drain_seconds)
        self._membership.end_drain(target)
        while not self._is_wanted(target):
            if self._may_control:
                await self._membership.until_free(target, self._registry.revision(target.model))
                if await self._is_unloaded(version):
                    break
                await asyncio.sleep(self._settings.health_interval_seconds)
            elif target not in self._surveyed:
                break
            else:
                await self._news.wait()
        self._show([other for other in self._all() if other is not version])
        self._loader.forget(version)
        logger.info("%s is unloaded", target)

    def _is_wanted(self, target: Target) -> bool:
        state = self._registry.models.get(target.model)
        return state is not None and target.version in state.wanted

    async def _is_unloaded(self, version: ModelVersion) -> bool:
        """Have the backend unload a version; return whether it is gone."""
        try:
            if version.target in await self._control.survey() and not self._is_wanted(version.target):
                await self._control.unload(version.target)
        except BackendError as error:
            version.delay_unload(reason_of(error))
            return False
        return True

    def _wait_for(self, reason: Reason) -> None:
        if reason != self.view.waiting_for:
            logger.info("waiting for: %s" if reason.whole else "every version is ready%s", reason.whole)
            self.view = ServedVersions(self.view.model_versions, reason)
