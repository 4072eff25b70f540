"""Brings together what is wanted and what the backend has loaded, again and again."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from service.config.settings import Settings
from service.domain.archive import Archive, StoreError
from service.domain.backend import Backend, ModelControl, Target, VersionStatus
from service.errors.admin import ArchiveRefused, StateUnavailable, VersionExists
from service.errors.gateway import BackendError, BackendTimeout
from service.persistence.membership import Membership
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion, SelfCheckFailed
from service.serving.store_watcher import ModelStoreWatcher
from service.serving.version_loader import Lifecycle
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

TIMEOUTS_THAT_MEAN_DOWN = 3


@dataclass(frozen=True)
class ReconcilerView:
    """What requests read: the versions in service by model, most traffic first; replaced, never changed."""

    model_versions: Mapping[str, Mapping[str, ModelVersion]]
    waiting_for: str  # why there is nothing, or not all, to serve; empty when all is well


class Reconciler:
    """Keeps every wanted version loaded, checked and ready, through restarts of the backend."""

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        control: ModelControl,
        registry: Registry,
        membership: Membership,
        metrics: Metrics,
    ) -> None:
        self._membership = membership
        self._settings = settings
        self._backend = backend
        self._control = control
        self._registry = registry
        self._metrics = metrics
        self._lifecycle = Lifecycle(settings, backend, control, metrics)
        self._store = ModelStoreWatcher(settings, registry)
        self._num_timeouts = 0
        self._complaint = ""  # about the store, the last one
        self._incoming: set[Target] = set()
        self._retiring: dict[Target, asyncio.Task[None]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self.view = ReconcilerView({}, "the gateway is starting")

    async def start(self) -> None:
        """Begin to keep the reconciler in the background; nothing need be there yet."""
        await self._backend.start()
        await self._control.start()
        await self._membership.start()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def close(self, drain_seconds: float) -> None:
        """Stop looking, finish what waits and runs within `drain_seconds`, let go of the backend."""
        tasks = [task for task in (self._keeper, *self._retiring.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(model_version.batcher.drain(drain_seconds) for model_version in self._all()))
        await self._control.close()
        await self._backend.close()
        await self._membership.close()
        await self._registry.close()

    def find(self, target: Target) -> ModelVersion | None:
        """Return what is in service as `target`, ready or not."""
        return self.view.model_versions.get(target.model, {}).get(target.version)

    async def admit(self, archive: Archive, num_workers: int | None) -> ModelVersion:
        """Load and check a version that is not wanted yet; requests do not see it before `offer`.

        Raises:
            VersionExists: it is there, or being loaded.
            ArchiveRefused: the archive is another than it should be, does not load, or fails its self-check.
            BackendError: the backend is not there.
        """
        target = archive.target
        if target in self._incoming or self.find(target) is not None:
            raise VersionExists(target.model, target.version)
        self._incoming.add(target)
        model_version = self._lifecycle.new(archive, num_workers)
        is_ready = False
        try:
            await self._lifecycle.open(model_version)
            await self._lifecycle.load(model_version, (await self._control.survey()).get(target))
            is_ready = True
        except (StoreError, SelfCheckFailed) as error:
            raise ArchiveRefused(_reason(error)) from error
        except BackendError as error:
            if error.is_outage:
                raise
            raise ArchiveRefused(_reason(error)) from error
        finally:
            if not is_ready:
                await self.dismiss(model_version)
        return model_version

    async def dismiss(self, model_version: ModelVersion) -> None:
        """Undo `admit`, as far as it came."""
        try:
            await self._lifecycle.unload(model_version.target)
        except BackendError as error:
            logger.warning("%s could not be unloaded: %s", model_version.target, error)
        self._lifecycle.forget(model_version)
        self._incoming.discard(model_version.target)

    def offer(self, model_version: ModelVersion) -> None:
        """Let requests see an admitted version."""
        self._incoming.discard(model_version.target)
        self._show([*self._all(), model_version])

    async def scale(
        self, model_version: ModelVersion, num_workers: int, record: Callable[[], Awaitable[object]]
    ) -> None:
        """Give a version another number of workers, then `record` it; if that fails, the number is what it was.

        Raises:
            BackendError: the backend does not do it.
        """
        async with model_version.moving:
            before = model_version.num_workers
            await self._lifecycle.scale(model_version, num_workers)
            try:
                await record()
            except BaseException:
                await self._lifecycle.scale(model_version, before)
                raise
            model_version.num_workers = num_workers  # what is recorded may have been followed meanwhile

    async def retired(self, target: Target) -> None:
        """Return when a version that is wanted no more has answered its requests and is unloaded."""
        self.follow()
        if (task := self._retiring.get(target)) is not None:
            await asyncio.shield(task)

    def follow(self) -> None:
        """Have a model_version for every version that is wanted, and begin to let go of the others."""
        wanted = {
            Target(model, version): record
            for model, state in self._registry.models.items()
            for version, record in state.wanted.items()
        }
        kept: list[ModelVersion] = []
        for model_version in self._all():
            record = wanted.pop(model_version.target, None)
            if record is None and model_version.target not in self._retiring:
                self._membership.begin_drain(model_version.target)
                retiring = asyncio.get_running_loop().create_task(self._retire(model_version))
                self._retiring[model_version.target] = retiring
            elif record is not None and not model_version.is_open and model_version.archive != record.archive:
                wanted[model_version.target] = record  # it was written anew before it could be read
                continue
            elif record is not None:
                model_version.num_workers = record.num_workers or self._settings.workers_per_version
            kept.append(model_version)
        new = [
            self._lifecycle.new(record.archive, record.num_workers)
            for target, record in wanted.items()
            if target not in self._incoming and target not in self._retiring
        ]
        self._show([*kept, *new])
        self._membership.follow(self._registry.models)

    def _all(self) -> list[ModelVersion]:
        return [model_version for versions in self.view.model_versions.values() for model_version in versions.values()]

    def _show(self, shown: Sequence[ModelVersion]) -> None:
        model_versions: dict[str, dict[str, ModelVersion]] = {}
        for model_version in sorted(shown, key=self._most_traffic_first):
            model_versions.setdefault(model_version.target.model, {})[model_version.target.version] = model_version
            if (state := self._registry.models.get(model_version.target.model)) is not None:
                model_version.metrics.play(state.role(model_version.target.version))
        self.view = ReconcilerView(model_versions, self.view.waiting_for)

    def _most_traffic_first(self, model_version: ModelVersion) -> tuple[str, float, bool, str]:
        model, version = model_version.target.model, model_version.target.version
        state = self._registry.models.get(model)
        weights = {} if state is None or state.policy is None else state.policy.weights
        has_label = state is not None and version in state.labels.values()
        return model, -weights.get(version, 0.0), not has_label, version

    async def _retire(self, model_version: ModelVersion) -> None:
        """Drain and unload a version; what the backend cannot do now is tried again."""
        try:
            await self._lifecycle.drain(model_version)
            await self._membership.drained(model_version.target, self._registry.revision(model_version.target.model))
            while True:
                try:
                    async with model_version.moving:
                        await self._lifecycle.unload(model_version.target)
                    break
                except BackendError as error:
                    model_version.reason = f"it is being unregistered, but not unloaded yet: {_reason(error)}"
                    logger.warning("%s: %s", model_version.target, model_version.reason)
                    await asyncio.sleep(self._settings.health_interval_seconds)
            self._show([other for other in self._all() if other is not model_version])
            self._lifecycle.forget(model_version)
            logger.info("%s is unloaded", model_version.target)
        finally:
            del self._retiring[model_version.target]

    async def _keep(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # the one task that must survive whatever it meets; the cause is in the log
                logger.exception("looking after the reconciler failed; it goes on")
            await asyncio.sleep(self._settings.health_interval_seconds)

    async def _look(self) -> None:
        """One round: learn what is wanted, then bring up what is not ready, default first."""
        try:
            await self._store.look(is_serving=any(model_version.is_open for model_version in self._all()))
        except (StoreError, StateUnavailable) as error:
            if not self._all():
                self._wait_for(_reason(error))
                return
            if (complaint := _reason(error)) != self._complaint:
                logger.warning("looking for new archives failed: %s", complaint)
            self._complaint = complaint
        self.follow()
        try:
            registered = await self._control.survey()
        except BackendTimeout as error:
            # A busy server answers late; only one that keeps silent is down.
            self._num_timeouts += 1
            if self._num_timeouts >= TIMEOUTS_THAT_MEAN_DOWN:
                self._backend_is_down(error)
            return
        except BackendError as error:
            self._backend_is_down(error)
            return
        self._num_timeouts = 0
        self._metrics.backend_up.set(1)
        for model_version in self._all():
            async with model_version.moving:
                if model_version.state != "draining":
                    await self._look_after(model_version, registered.get(model_version.target))
        unready = [d for d in self._all() if d.state != "ready"]
        self._wait_for("; ".join(f"{d.target} is {d.state}: {d.reason}" for d in unready))

    def _backend_is_down(self, error: BackendError) -> None:
        self._metrics.backend_up.set(0)
        for model_version in self._all():
            if model_version.state == "draining":
                continue
            # What never was up is still waited for; only what was goes missing.
            model_version.become("waiting" if model_version.state == "waiting" else "unavailable", _reason(error))
            model_version.metrics.show_workers({})
        self._wait_for(_reason(error))

    async def _look_after(self, model_version: ModelVersion, status: VersionStatus | None) -> None:
        if status is not None:
            model_version.show(status)
            if model_version.state == "ready" and status.num_ready:
                await self._lifecycle.keep_size(model_version, status)
                return
            if model_version.state in {"ready", "unavailable"} and not status.num_ready:
                # The server restarts its workers by itself; until one is back nobody should wait for it.
                model_version.become("unavailable", f"none of its {status.num_workers_wanted} workers is ready")
                return
        if time.monotonic() < model_version.retry_at:
            return
        try:
            if not model_version.is_open:
                await self._lifecycle.open(model_version)
            self._wait_for(f"{model_version.target} is loading")
            await self._lifecycle.load(model_version, status)
        except (StoreError, BackendError, SelfCheckFailed) as error:
            self._lifecycle.failed(model_version, _reason(error))

    def _wait_for(self, reason: str) -> None:
        if reason != self.view.waiting_for:
            logger.info("waiting for: %s" if reason else "every version is ready%s", reason)
            self.view = ReconcilerView(self.view.model_versions, reason)


def _reason(error: Exception) -> str:
    return str(error).rstrip(".")  # it becomes part of a sentence
