"""One model version in service: its archive, its state and its batcher."""

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from service.batching.batcher import Batcher
from service.domain.archive import Archive
from service.domain.backend import Backend, BatchOptions, ItemError, ModelControl, ProbabilityVector, VersionStatus
from service.domain.contract import Contract
from service.errors.gateway import AlreadyRegistered, BackendUnavailable, NotReady
from service.monitoring.drift_monitor import DriftMonitor
from service.monitoring.signed_ids import target_bytes
from service.telemetry.version_metrics import VersionMetrics

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 15.0  # for a version that is registered without a ready worker; then it is replaced
LOOK_SECONDS = 0.2

State = Literal["waiting", "loading", "ready", "unavailable", "failed", "draining"]


class SelfCheckFailed(Exception):
    """A loaded version does not give the answers that its contract promises."""


@dataclass
class RequestCounts:
    """What became of a version's requests, counted since it was loaded; who wants a period takes differences."""

    slow_seconds: float = math.inf
    num_answered: int = 0  # failures of ours included
    num_errors: int = 0
    num_slow: int = 0
    num_labelled: int = 0  # answers that somebody gave the right label for
    num_wrong: int = 0

    def count(self, seconds: float, *, is_error: bool) -> None:
        """Count one request."""
        self.num_answered += 1
        self.num_errors += is_error
        self.num_slow += is_error or seconds > self.slow_seconds

    def label(self, *, is_correct: bool) -> None:
        """Count one answer that is known to be right or wrong."""
        self.num_labelled += 1
        self.num_wrong += not is_correct


class ModelVersion:
    """A version that is wanted: what is known of it, whether it may be asked, and the batcher that asks it."""

    def __init__(
        self, archive: Archive, contract: Contract, batcher: Batcher, metrics: VersionMetrics, num_workers: int
    ) -> None:
        self.archive = archive
        self.contract = contract
        self.batcher = batcher
        self.metrics = metrics
        self.target = archive.target
        self.target_bytes = target_bytes(archive.target)
        self.state: State = "waiting"
        self.reason = "it has not been loaded yet"
        self.num_failures = 0
        self.has_settled = False  # has been ready, or has failed to be
        self.retry_at = 0.0  # time.monotonic(); after a load that failed
        self.resize_at = 0.0  # time.monotonic(); after somebody else's scaling was undone
        self.counts = RequestCounts()
        self.quality: DriftMonitor | None = None  # from when the contract is known
        self.num_workers = num_workers  # that are wanted
        self.num_workers_used = 0  # that the batcher reckons with
        self.moving = asyncio.Lock()  # held while it is loaded, scaled or unloaded
        self._num_arriving = 0
        self._all_arrived = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Return whether the archive could be opened, so that its contract is known."""
        return bool(self.contract.classes)

    @property
    def is_answering(self) -> bool:
        """Return whether requests may be dealt to the version."""
        return self.state == "ready" and not self.batcher.is_cut_off

    def become(self, state: State, reason: str = "") -> None:
        """Change the state; leaving `ready` answers what waits, since nobody will come for it."""
        if (state, reason) == (self.state, self.reason):
            return
        level = logging.WARNING if state in {"unavailable", "failed"} else logging.INFO
        logger.log(level, "%s is %s%s", self.target, state, f": {reason}" if reason else "")
        self.has_settled = self.has_settled or state in {"ready", "failed"}
        was_ready, self.state, self.reason = self.state == "ready", state, reason
        self.metrics.ready.set(state == "ready")
        if was_ready and state not in {"ready", "draining"}:
            self.batcher.fail_waiting(BackendUnavailable(reason))

    def require_ready(self) -> None:
        """Raise NotReady, with the reason, unless the version may be asked."""
        if self.state != "ready":
            raise NotReady(f"{self.target} is {self.state}: {self.reason}")

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Have a drain wait for a request that was let in and whose body is still on its way."""
        self._num_arriving += 1
        try:
            yield
        finally:
            self._num_arriving -= 1
            if not self._num_arriving:
                self._all_arrived.set()

    async def drain(self, seconds: float) -> None:
        """Take no new requests, and return when those that were let in are answered, after `seconds` anyway."""
        self.become("draining", "it is being unregistered")
        deadline = time.monotonic() + seconds
        while self._num_arriving and (remaining := deadline - time.monotonic()) > 0:
            self._all_arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_arrived.wait(), remaining)
        await self.batcher.drain(max(deadline - time.monotonic(), 0))

    def require_open(self) -> None:
        """Raise NotReady unless a request that was let in may still be answered."""
        if self.state != "draining":
            self.require_ready()

    def show(self, status: VersionStatus) -> None:
        """Export what the backend says of the version's workers."""
        self.metrics.show_workers(status.worker_states)
        self.metrics.workers_wanted.set(self.num_workers)
        self.metrics.pending.set(status.num_pending)
        self.metrics.show_memory(status.worker_memory_bytes)

    def use(self, num_workers: int, backend: Backend) -> None:
        """Have as many batches in flight as keep so many workers busy."""
        self.batcher.set_capacity(num_workers, backend.num_slots(num_workers))
        self.num_workers_used = num_workers

    async def bring_up(
        self,
        control: ModelControl,
        backend: Backend,
        status: VersionStatus | None,
        *,
        timeout_seconds: float,
    ) -> None:
        """Have the archive loaded, with as many workers as are wanted, and see that it answers as promised.

        `status` is what the backend has of this version now, None for nothing.

        Raises:
            BackendError: the backend does not load or answer it.
            SelfCheckFailed: it answers something else than its contract says.
        """
        if status is not None and not status.num_ready:
            status = await self._awaited(control)
        if status is not None and not (status.num_ready and await self._is_this_archive(control)):
            logger.warning("%s is registered without a ready worker or from another archive; replaced", self.target)
            await control.unload(self.target)
            status = None
        if status is None:
            try:
                await control.load(self.target, self.archive.file, self.num_workers)
            except AlreadyRegistered:
                if (status := await self._awaited(control)) is None or not status.num_ready:
                    raise
            if not await self._is_this_archive(control):
                raise SelfCheckFailed("the model server loaded another archive than the manifest names")
        elif status.num_workers_wanted != self.num_workers:
            await control.scale(self.target, self.num_workers)
        await self._self_check(backend, timeout_seconds)
        self.use(self.num_workers, backend)

    async def _awaited(self, control: ModelControl) -> VersionStatus | None:
        """Return what the backend has of this version, after a while for a worker to be ready.

        Whoever shares the backend, another gateway or another process, may be loading it just now.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (status := (await control.survey()).get(self.target)) is not None:
            if status.num_ready or time.monotonic() > deadline:
                return status
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def _is_this_archive(self, control: ModelControl) -> bool:
        described = await control.contract(self.target)
        return all(described.get(key) == value for key, value in self.contract.document.items())

    async def _self_check(self, backend: Backend, timeout_seconds: float) -> None:
        options = BatchOptions(top_k=1, probabilities=True)
        for number, case in enumerate(self.contract.self_check):
            answer = await backend.predict(self.target, [case.image], options, timeout_seconds)
            match answer.results:
                case [ProbabilityVector(probabilities)]:
                    difference = _max_abs_difference(probabilities, case.probabilities)
                    if not difference <= self.contract.tolerance:  # a NaN fails too
                        allowed = self.contract.tolerance
                        raise SelfCheckFailed(
                            f"self-check case {number} is off by {difference:.3g}, allowed {allowed:.3g}"
                        )
                case [ItemError(code, message)]:
                    raise SelfCheckFailed(f"self-check case {number}: {code}: {message}")
                case _:
                    raise SelfCheckFailed(f"self-check case {number}: no probabilities in {answer.results}")


def _max_abs_difference(a: Sequence[float], b: Sequence[float]) -> float:
    if len(a) != len(b):
        return float("inf")
    return max(abs(x - y) for x, y in zip(a, b, strict=True))
