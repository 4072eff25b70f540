"""The steps that make a version ready: open its archive, load it, compare its answers with its contract."""

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from service.batching.batcher import Batcher
from service.batching.queue import BatchLimits
from service.config.settings import Settings
from service.domain.archive import Archive, StoreError, TrustError
from service.domain.backend import (
    Backend,
    BatchOptions,
    ItemError,
    ModelControl,
    ProbabilityVector,
    Target,
    VerifiedArchive,
    VersionStatus,
)
from service.domain.model_state import Entry, VersionRecord
from service.errors.gateway import AlreadyRegistered, BackendError, BackendFailed, GatewayError
from service.errors.reason import Reason
from service.monitoring.drift import DriftLimits
from service.monitoring.drift_monitor import DriftMonitor
from service.persistence.archives.model_store import ModelStore
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import DriftMetrics, VersionMetrics

logger = logging.getLogger(__name__)

PUBLIC_STORE_ERROR = "the model store cannot be used"  # its own message has paths


class SelfCheckFailed(Exception):
    """A loaded version gives other answers than its contract promises."""


class VersionLoader:
    """Creates versions and has the backend load them."""

    def __init__(
        self,
        settings: Settings,
        store: ModelStore,
        registry: Registry,
        backend: Backend,
        control: ModelControl,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._store = store
        self._registry = registry
        self._backend = backend
        self._control = control
        self._metrics = metrics
        self._refusals: dict[Target, str] = {}  # those that the event log has; each is tried again and again
        self._opening = asyncio.Lock()  # one archive at a time, in the order of the loads

    def create(self, record: VersionRecord, revision: int) -> ModelVersion:
        """Return a version that is not loaded yet."""
        metrics = VersionMetrics(self._metrics, record.archive.target)
        batcher = Batcher(record.archive.target, self._backend, _limits(self._settings), metrics)
        metrics.watch(batcher.gauges)
        default, most = self._settings.workers_per_version, self._settings.max_workers_per_version
        return ModelVersion(record, revision, default, most, batcher, metrics)

    async def open(self, version: ModelVersion) -> None:
        """Read the archive's contract; raises StoreError if the manifest names another archive."""
        settings, archive = self._settings, version.archive
        async with self._opening:
            contract = await asyncio.to_thread(self._store.contract, archive)
        precision = str(contract.shown.get("precision", ""))
        version.metrics.info.info({"precision": precision, "sha256": archive.sha256})
        limits = DriftLimits(
            settings.drift_window_items, settings.drift_class_threshold, settings.drift_confidence_threshold
        )
        metrics = DriftMetrics(self._metrics, version.target, contract.classes)
        version.open(contract, DriftMonitor(version.target, contract, limits, metrics))
        if contract.reference is None:
            logger.info("%s: its contract has no reference, so drift is not measured", version.target)

    async def bring_up(
        self, version: ModelVersion, status: VersionStatus | None, *, may_control: bool, leader_failed: str
    ) -> None:
        """Have a version loaded and checked; `status` is its state in the backend now.

        Without `may_control` the leading gateway loads it; `leader_failed` is the reason if it could not.
        """
        try:
            if not version.is_open:
                await self.open(version)
            is_starting = status is not None and not status.num_ready
            if is_starting and (not may_control or version.seconds_unready < self._settings.load_timeout_seconds):
                # Another gateway loads it, or this one did before it was restarted.
                version.start_loading("the model server starts its workers")
            elif status is None and not may_control:
                if leader_failed:
                    raise BackendFailed(leader_failed)
                version.wait("the leading gateway has not loaded it yet")
            else:
                await self._load(version, status, may_control=may_control)
        except AlreadyRegistered:
            version.start_loading("another gateway loads it")
        except (StoreError, BackendError, SelfCheckFailed) as error:
            version.fail(error, reason_of(error))
            if isinstance(error, TrustError):
                await self._note_refusal(version.target, error)

    async def _load(self, version: ModelVersion, status: VersionStatus | None, *, may_control: bool) -> None:
        """Have the backend load this archive with its workers, and check its answers."""
        version.start_loading(f"the model server loads {version.archive.file}, then its answers are checked")
        if may_control and status is not None and not (status.num_ready and await self._is_same(version, status)):
            logger.warning("%s is registered without a ready worker or from another archive; replaced", version.target)
            await self._control.unload(version.target)
            status = None
        num_workers = version.num_workers
        if may_control and status is None:
            async with self._verified(version.archive) as archive:
                await self._control.load(version.target, archive, num_workers)
        elif may_control and status is not None and status.num_workers_wanted != num_workers:
            await self._control.scale(version.target, num_workers)
        if not await self._is_same(version, status):
            if not may_control:
                version.wait("the model server has another archive of it, which the leading gateway replaces")
                return
            raise SelfCheckFailed("the model server loaded another archive than the manifest names")
        await self._self_check(version)
        self.use_workers(version, num_workers)
        version.become_ready()
        self._refusals.pop(version.target, None)

    async def _note_refusal(self, target: Target, error: TrustError) -> None:
        self._metrics.archive_refusals.labels(error.fault).inc()
        if self._refusals.get(target) != str(error):
            self._refusals[target] = str(error)
            await self._registry.note(Entry("gateway", "load", target.model, target.version, ""), "refused", str(error))

    async def scale(self, version: ModelVersion) -> None:
        """Give a version its recorded number of workers."""
        num_workers = version.num_workers
        version.start_scaling()
        try:
            await self._control.scale(version.target, num_workers)
        except BackendError as error:
            version.fail_scaling(error)
        else:
            self.use_workers(version, num_workers)

    def use_workers(self, version: ModelVersion, num_workers: int) -> None:
        """Allow as many batches in flight as keep this many workers busy."""
        version.use_workers(num_workers, self._backend.num_slots(num_workers))

    def forget(self, version: ModelVersion) -> None:
        """Remove a version that is gone from the metrics."""
        if version.quality is not None:
            version.quality.close()
        self._metrics.forget(version.target)
        self._refusals.pop(version.target, None)

    @asynccontextmanager
    async def _verified(self, archive: Archive) -> AsyncIterator[VerifiedArchive]:
        """Check an archive once more, for this load, and give what the backend may load."""
        stop = threading.Event()
        work = asyncio.get_running_loop().run_in_executor(None, self._store.verified, archive, stop)
        try:
            verified = await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({work})
            if work.exception() is None:
                work.result().close()
            raise
        try:
            yield verified
        finally:
            await asyncio.to_thread(verified.close)

    async def _is_same(self, version: ModelVersion, status: VersionStatus | None) -> bool:
        """Return whether the backend has the version's archive; a `status` was there before this gateway loaded it."""
        if status is not None and not self._store.is_verified(version.archive, status.file):
            return False
        described = await self._control.contract(version.target)
        return all(described.get(key) == value for key, value in version.contract.document.items())

    async def _self_check(self, version: ModelVersion) -> None:
        options, contract = BatchOptions(top_k=1, probabilities=True), version.contract
        timeout_seconds = self._settings.backend_timeout_ms / 1000
        for number, case in enumerate(contract.self_check):
            answer = await self._backend.predict(version.target, [case.image], options, timeout_seconds)
            match answer.results:
                case [ProbabilityVector(probabilities)]:
                    difference = _max_abs_difference(probabilities, case.probabilities)
                    if not difference <= contract.tolerance:  # a NaN fails too
                        raise SelfCheckFailed(
                            f"self-check case {number} is off by {difference:.3g}, allowed {contract.tolerance:.3g}"
                        )
                case [ItemError(code, message)]:
                    raise SelfCheckFailed(f"self-check case {number}: {code}: {message}")
                case _:
                    raise SelfCheckFailed(f"self-check case {number}: no probabilities in {answer.results}")


def reason_of(error: Exception) -> str:
    """Return an error's message as part of a sentence."""
    return str(error).rstrip(".")


def texts_of(error: GatewayError | StoreError) -> Reason:
    """Return an error's message for readers, and what it is about for others."""
    return error.texts if isinstance(error, GatewayError) else Reason(PUBLIC_STORE_ERROR, reason_of(error))


def _max_abs_difference(a: Sequence[float], b: Sequence[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) if len(a) == len(b) else math.inf


def _limits(settings: Settings) -> BatchLimits:
    return BatchLimits(
        max_batch_size=settings.max_batch_size,
        max_batch_bytes=settings.max_batch_bytes,
        max_queue_items=settings.max_queue_items,
        max_queue_bytes=settings.max_queue_bytes,
        backend_timeout_ms=settings.backend_timeout_ms,
        latency_objective_ms=settings.latency_objective_ms,
    )
