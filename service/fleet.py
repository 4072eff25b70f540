"""Brings together what the model store offers and what the backend has loaded, again and again."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from service.backend import Backend, ModelControl, VersionStatus
from service.batcher import Batcher
from service.catalog import StoreError, open_archive, read_catalog
from service.contract import Contract
from service.deployment import Deployment, SelfCheckFailed
from service.errors import BackendError, BackendTimeout
from service.metrics import Metrics
from service.queue import BatchLimits
from service.settings import Settings

logger = logging.getLogger(__name__)

LONGEST_RETRY_SECONDS = 60.0
TIMEOUTS_THAT_MEAN_DOWN = 3


@dataclass(frozen=True)
class FleetView:
    """What requests read: the versions in service by model, the default one first; replaced, never changed."""

    deployments: Mapping[str, Mapping[str, Deployment]]
    waiting_for: str  # why there is nothing, or not all, to serve; empty when all is well


class Fleet:
    """Keeps every wanted version loaded, checked and ready, through restarts of the backend."""

    def __init__(self, settings: Settings, backend: Backend, control: ModelControl, metrics: Metrics) -> None:
        self._settings = settings
        self._backend = backend
        self._control = control
        self._metrics = metrics
        self._num_timeouts = 0
        self._keeper: asyncio.Task[None] | None = None
        self.view = FleetView({}, "the gateway is starting")

    async def start(self) -> None:
        """Begin to keep the fleet in the background; nothing need be there yet."""
        await self._backend.start()
        await self._control.start()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def close(self, drain_seconds: float) -> None:
        """Stop looking, finish what waits and runs within `drain_seconds`, let go of the backend."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await asyncio.gather(*(deployment.batcher.drain(drain_seconds) for deployment in self._all()))
        await self._control.close()
        await self._backend.close()

    def _all(self) -> list[Deployment]:
        return [deployment for versions in self.view.deployments.values() for deployment in versions.values()]

    async def _keep(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # the one task that must survive whatever it meets; the cause is in the log
                logger.exception("looking after the fleet failed; it goes on")
            await asyncio.sleep(self._settings.health_interval_seconds)

    async def _look(self) -> None:
        """One round: read the store until it offers something, then bring up what is not ready, default first."""
        if not any(deployment.is_open for deployment in self._all()) and not await self._open_store():
            return
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
        for deployment in self._all():
            await self._look_after(deployment, registered.get(deployment.target))
        unready = [d for d in self._all() if d.state != "ready"]
        self._wait_for("; ".join(f"{d.target} is {d.state}: {d.reason}" for d in unready))

    def _backend_is_down(self, error: BackendError) -> None:
        self._metrics.backend_up.set(0)
        for deployment in self._all():
            # What never was up is still waited for; only what was goes missing.
            deployment.become("waiting" if deployment.state == "waiting" else "unavailable", _reason(error))
            deployment.metrics.show_workers({})
        self._wait_for(_reason(error))

    async def _open_store(self) -> bool:
        store = self._settings.model_store
        try:
            catalog = read_catalog(store)
            if not catalog.archives:
                self._wait_for(f"no archive in {store}/manifest.json yet (make train-and-archive puts some there)")
                return False
            if self._settings.default_model not in {None, *catalog.models}:
                self._wait_for(
                    f"TORCHGATE_DEFAULT_MODEL={self._settings.default_model} is not in {store}/manifest.json, "
                    f"which has {', '.join(catalog.models)}"
                )
                return False
        except StoreError as error:
            self._wait_for(str(error))
            return False
        deployments: dict[str, dict[str, Deployment]] = {}
        for archive in catalog.archives:
            metrics = self._metrics.of(archive.target)
            batcher = Batcher(archive.target, self._backend, _limits(self._settings), metrics)
            unknown = Contract.unknown(archive.model, archive.version)
            deployment = Deployment(archive, unknown, batcher, metrics)
            await self._open(deployment)
            deployments.setdefault(archive.model, {})[archive.version] = deployment
        self.view = FleetView(deployments, "no version has been loaded yet")
        return True

    async def _open(self, deployment: Deployment) -> None:
        """Read the archive's contract; one that cannot be opened fails alone, and is tried again later."""
        archive = deployment.archive
        try:
            deployment.contract = await asyncio.to_thread(open_archive, self._settings.model_store, archive)
        except StoreError as error:
            self._failed(deployment, error)
            return
        precision = str(deployment.contract.document.get("precision", ""))
        deployment.metrics.info.info({"precision": precision, "sha256": archive.sha256})

    async def _look_after(self, deployment: Deployment, status: VersionStatus | None) -> None:
        if status is not None:
            deployment.show(status)
            if deployment.state == "ready" and status.num_ready:
                await self._keep_size(deployment, status)
                return
            if deployment.state in {"ready", "unavailable"} and not status.num_ready:
                # The server restarts its workers by itself; until one is back nobody should wait for it.
                deployment.become("unavailable", f"none of its {status.num_workers_wanted} workers is ready")
                return
        if time.monotonic() < deployment.retry_at:
            return
        if not deployment.is_open:
            await self._open(deployment)
        if deployment.is_open:
            try:
                await self._bring_up(deployment, status)
            except (BackendError, SelfCheckFailed) as error:
                self._failed(deployment, error)

    def _failed(self, deployment: Deployment, error: Exception) -> None:
        deployment.retry_at = time.monotonic() + min(2.0**deployment.num_failures, LONGEST_RETRY_SECONDS)
        deployment.num_failures += 1
        deployment.become("failed", _reason(error))

    async def _keep_size(self, deployment: Deployment, status: VersionStatus) -> None:
        """Undo what somebody else did to the number of workers, once in a while: it may be another gateway."""
        num_workers, now = self._settings.workers_per_version, time.monotonic()
        if status.num_workers_wanted != num_workers and now >= deployment.retry_at:
            deployment.retry_at = now + LONGEST_RETRY_SECONDS
            logger.warning(
                "%s has %d workers; wanted are %d", deployment.target, status.num_workers_wanted, num_workers
            )
            try:
                await self._control.scale(deployment.target, num_workers)
            except BackendError as error:
                logger.warning("%s cannot be scaled: %s", deployment.target, error)

    async def _bring_up(self, deployment: Deployment, status: VersionStatus | None) -> None:
        started = time.monotonic()
        deployment.become("loading", f"the model server loads {deployment.archive.file}, then its answers are checked")
        self._wait_for(f"{deployment.target} is loading")
        await deployment.bring_up(
            self._control,
            self._backend,
            status,
            num_workers=self._settings.workers_per_version,
            timeout_seconds=self._settings.backend_timeout_ms / 1000,
        )
        deployment.metrics.load_seconds.set(time.monotonic() - started)
        deployment.num_failures = 0
        deployment.become("ready")

    def _wait_for(self, reason: str) -> None:
        if reason != self.view.waiting_for:
            logger.info("waiting for: %s" if reason else "every version is ready%s", reason)
            self.view = FleetView(self.view.deployments, reason)


def _reason(error: Exception) -> str:
    return str(error).rstrip(".")  # it becomes part of a sentence


def _limits(settings: Settings) -> BatchLimits:
    return BatchLimits(
        max_batch_size=settings.max_batch_size,
        max_batch_bytes=settings.max_batch_bytes,
        max_queue_items=settings.max_queue_items,
        max_queue_bytes=settings.max_queue_bytes,
        backend_timeout_ms=settings.backend_timeout_ms,
        latency_objective_ms=settings.latency_objective_ms,
    )
