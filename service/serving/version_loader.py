"""What happens to one version: its archive is opened, loaded and checked, it is scaled, drained and unloaded."""

import asyncio
import logging
import time
from contextlib import suppress

from service.batching.batcher import Batcher
from service.batching.queue import BatchLimits
from service.config.settings import Settings
from service.domain.archive import Archive, open_archive
from service.domain.backend import Backend, ModelControl, Target, VersionStatus
from service.domain.contract import Contract
from service.errors.gateway import BackendError
from service.monitoring.drift import DriftLimits
from service.monitoring.drift_monitor import DriftMonitor
from service.serving.model_version import ModelVersion
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import DriftMetrics, VersionMetrics

logger = logging.getLogger(__name__)

LONGEST_RETRY_SECONDS = 60.0


class Lifecycle:
    """Makes model_versions and moves them through their states, by way of the backend."""

    def __init__(self, settings: Settings, backend: Backend, control: ModelControl, metrics: Metrics) -> None:
        self._settings = settings
        self._backend = backend
        self._control = control
        self._metrics = metrics

    def new(self, archive: Archive, num_workers: int | None) -> ModelVersion:
        """Return a model_version of which nothing has been done yet; None takes as many workers as the settings say."""
        metrics = VersionMetrics(self._metrics, archive.target)
        batcher = Batcher(archive.target, self._backend, _limits(self._settings), metrics)
        metrics.watch(batcher.gauges)
        unknown = Contract.unknown(archive.model, archive.version)
        return ModelVersion(archive, unknown, batcher, metrics, num_workers or self._settings.workers_per_version)

    async def open(self, model_version: ModelVersion) -> None:
        """Read the archive's contract.

        Raises:
            StoreError: it is not the archive that the manifest promises.
        """
        archive = model_version.archive
        model_version.contract = await asyncio.to_thread(open_archive, self._settings.model_store, archive)
        precision = str(model_version.contract.document.get("precision", ""))
        model_version.metrics.info.info({"precision": precision, "sha256": archive.sha256})
        self._watch(model_version)

    async def load(self, model_version: ModelVersion, status: VersionStatus | None) -> None:
        """Have the version loaded and checked; `status` is what the backend has of it now.

        Raises:
            BackendError, SelfCheckFailed: it is not ready after all.
        """
        started = time.monotonic()
        model_version.become(
            "loading", f"the model server loads {model_version.archive.file}, then its answers are checked"
        )
        timeout_seconds = self._settings.backend_timeout_ms / 1000
        await model_version.bring_up(self._control, self._backend, status, timeout_seconds=timeout_seconds)
        model_version.metrics.load_seconds.set(time.monotonic() - started)
        model_version.num_failures = 0
        model_version.become("ready")
        # Others may take minutes to load before the next round would show its workers.
        with suppress(BackendError):
            if (now := (await self._control.survey()).get(model_version.target)) is not None:
                model_version.show(now)

    def failed(self, model_version: ModelVersion, reason: str) -> None:
        """Take in that opening or loading failed, and how long to leave it alone."""
        model_version.retry_at = time.monotonic() + min(2.0**model_version.num_failures, LONGEST_RETRY_SECONDS)
        model_version.num_failures += 1
        model_version.become("failed", reason)

    async def scale(self, model_version: ModelVersion, num_workers: int) -> None:
        """Give the version another number of workers.

        Raises:
            BackendError: the backend does not do it.
        """
        await self._control.scale(model_version.target, num_workers)
        model_version.num_workers = num_workers
        model_version.use(num_workers, self._backend)

    async def keep_size(self, model_version: ModelVersion, status: VersionStatus) -> None:
        """Undo what somebody else did to the number of workers, once in a while: they may do it again."""
        now = time.monotonic()
        if status.num_workers_wanted == model_version.num_workers:
            if model_version.num_workers_used != model_version.num_workers:  # another gateway has scaled it
                model_version.use(model_version.num_workers, self._backend)
        elif now >= model_version.resize_at:
            model_version.resize_at = now + LONGEST_RETRY_SECONDS
            found, wanted = status.num_workers_wanted, model_version.num_workers
            logger.warning("%s has %d workers; wanted are %d", model_version.target, found, wanted)
            try:
                await self.scale(model_version, wanted)
            except BackendError as error:
                logger.warning("%s cannot be scaled: %s", model_version.target, error)

    async def drain(self, model_version: ModelVersion) -> None:
        """Answer what was let in, and let nothing more in."""
        await model_version.drain(self._settings.drain_seconds)

    async def unload(self, target: Target) -> None:
        """Have the backend forget a version, if it has it.

        Raises:
            BackendError: the backend does not do it.
        """
        if target in await self._control.survey():
            await self._control.unload(target)

    def forget(self, model_version: ModelVersion) -> None:
        """Take back what a version that is gone has among the metrics."""
        if model_version.quality is not None:
            model_version.quality.close()
        self._metrics.forget(model_version.target)

    def _watch(self, model_version: ModelVersion) -> None:
        """Have the version's answers compared with what its contract promises."""
        settings, target, contract = self._settings, model_version.target, model_version.contract
        limits = DriftLimits(
            settings.drift_window_items, settings.drift_class_threshold, settings.drift_confidence_threshold
        )
        metrics = DriftMetrics(self._metrics, target, contract.classes)
        model_version.quality = DriftMonitor(target, contract, limits, metrics)
        model_version.batcher.observe_answers(model_version.quality.take)
        if contract.reference is None:
            logger.info("%s: its contract has no reference, so drift is not measured", target)


def _limits(settings: Settings) -> BatchLimits:
    return BatchLimits(
        max_batch_size=settings.max_batch_size,
        max_batch_bytes=settings.max_batch_bytes,
        max_queue_items=settings.max_queue_items,
        max_queue_bytes=settings.max_queue_bytes,
        backend_timeout_ms=settings.backend_timeout_ms,
        latency_objective_ms=settings.latency_objective_ms,
    )
