"""The workers of one loaded version: who gets the next batch, and who comes in the place of one that ended."""

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.backends.embedded.archive import Unpacked
from service.backends.embedded.memory import MemoryLimit
from service.backends.embedded.spare import Spares
from service.backends.embedded.wire import WorkerAnswer, pack_request
from service.backends.embedded.worker import Worker, WorkerRequest
from service.config.settings import Settings
from service.domain.backend import Target, VersionStatus
from service.errors.gateway import BackendError, BackendFailed, BackendUnavailable
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 30.0
LIVED_SECONDS = 10.0  # one that lived so long is replaced as if it were the first to die
DRAIN_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class _Slot:
    """A place for a worker; its task keeps one in it."""

    index: int
    worker: Worker | None = None
    leaving: Worker | None = None  # past its memory, still finishing
    num_failures: int = 0
    filled: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    task: "asyncio.Task[None] | None" = None

    @property
    def workers(self) -> set[Worker]:
        """Return the workers in it: one, except while it changes."""
        return {worker for worker in (self.worker, self.leaving) if worker is not None}


class WorkerPool:
    """A loaded version: `num_wanted` slots, each with a worker or about to have one."""

    def __init__(
        self,
        target: Target,
        archive: Unpacked,
        spares: Spares,
        metrics: Metrics,
        settings: Settings,
    ) -> None:
        self.target = target
        self._archive = archive
        self._spares = spares
        self._metrics = metrics
        self._memory = MemoryLimit(settings.worker_max_bytes)
        self._load_timeout_seconds = settings.load_timeout_seconds
        self._slots: list[_Slot] = []
        self._waiting: deque[WorkerRequest] = deque()
        self._num_batches = 0
        self._closed = False

    @property
    def is_settled(self) -> bool:
        """Tell whether there are slots, and every one has a worker that is ready."""
        return bool(self._slots) and all(
            slot.worker is not None and slot.worker.state == "ready" for slot in self._slots
        )

    @property
    def workers(self) -> Sequence[Worker]:
        """Return the workers that run now."""
        return [worker for slot in self._slots for worker in slot.workers]

    @property
    def folder(self) -> Path:
        """Return where its archive lies unpacked."""
        return self._archive.folder

    def status(self) -> VersionStatus:
        """Return how the workers are; a slot that waits before its next try counts as stopped."""
        states: Counter[str] = Counter(worker.state for worker in self.workers)
        states["stopped"] += sum(not slot.workers for slot in self._slots)
        behind = sum(max(0, worker.num_in_flight - 1) for worker in self.workers)
        return VersionStatus(len(self._slots), dict(states), len(self._waiting) + behind)

    def description(self) -> Mapping[str, Any]:
        """Return what a worker that is ready said of itself when it had loaded; waits behind no prediction."""
        for slot in self._slots:
            if slot.worker is not None and slot.worker.state == "ready":
                return slot.worker.description
        raise BackendUnavailable(f"no worker of {self.target} is ready")

    async def resize(self, num_workers: int) -> None:
        """Have so many workers and wait for the new ones; after a failure none of the new ones is left.

        Raises:
            BackendError: one of them does not load.
        """
        leaving = self._slots[num_workers:]
        del self._slots[num_workers:]
        await asyncio.gather(*(self._empty(slot, DRAIN_SECONDS) for slot in leaving))
        loop = asyncio.get_running_loop()
        new = [_Slot(index) for index in range(len(self._slots), num_workers)]
        for slot in new:
            slot.task = loop.create_task(self._keep(slot))
        self._slots += new
        try:
            await asyncio.gather(*(slot.filled for slot in new))
        except BaseException:
            self._slots = [slot for slot in self._slots if slot not in new]
            await asyncio.gather(*(self._empty(slot, 0) for slot in new))
            raise

    async def ask(
        self, fields: Sequence[tuple[str, bytes]], timeout_seconds: float, expected_seconds: float
    ) -> WorkerAnswer:
        """Return a worker's answer to one request, which should keep it for `expected_seconds`.

        A caller that is cancelled leaves its answer to be thrown away.

        Raises:
            BackendError: there is none.
        """
        if self._closed:
            raise BackendUnavailable(f"{self.target} is being unloaded")
        batch = self._batch(fields, {}, timeout_seconds, expected_seconds)
        self._waiting.append(batch)
        self._pump()
        return await batch.future

    def look_at_memory(self, num_workers: int) -> None:
        """Show every worker's memory; have one past its bound replaced, unless another is being.

        `num_workers` is how many there are of all versions together.
        """
        ready = []
        for slot in self._slots:
            num_bytes = slot.worker.memory_bytes() if slot.worker is not None else 0
            self._metrics.worker_memory.labels(*self._labels, str(slot.index)).set(num_bytes)
            if slot.worker is not None and slot.worker.state == "ready":
                ready.append((num_bytes, slot.worker))
        if not self.is_settled or any(slot.leaving is not None for slot in self._slots):
            return
        num_bytes, worker = max(ready, key=lambda each: each[0], default=(0, None))
        if worker is not None and num_bytes > self._memory.allowed_bytes(num_workers, worker.loaded_bytes):
            logger.warning("worker %d of %s takes %d bytes: replaced", worker.pid, self.target, num_bytes)
            # The only one goes on until the next has loaded.
            worker.retire("memory", stop=len(ready) > 1)

    async def close(self, drain_seconds: float) -> None:
        """Take nothing more, finish what is there within `drain_seconds`, end every worker."""
        self._closed = True
        slots, self._slots = self._slots, []
        deadline = time.monotonic() + drain_seconds
        waiting = [batch.future for batch in self._waiting if not batch.future.done()]
        if waiting and drain_seconds:
            self._slots = slots  # they are dealt out until none is left
            await asyncio.wait(waiting, timeout=drain_seconds)
            self._slots = []
        self._fail_waiting()
        await asyncio.gather(*(self._empty(slot, max(0.0, deadline - time.monotonic())) for slot in slots))
        for slot in slots:
            with contextlib.suppress(KeyError):
                self._metrics.worker_memory.remove(*self._labels, str(slot.index))

    @property
    def _labels(self) -> tuple[str, str]:
        return self.target.model, self.target.version

    def _batch(
        self,
        fields: Sequence[tuple[str, bytes]],
        headers: Mapping[str, str],
        timeout_seconds: float,
        expected_seconds: float = 0.0,
    ) -> WorkerRequest:
        self._num_batches += 1
        pieces = pack_request(self._num_batches, fields, headers)
        return WorkerRequest(self._num_batches, pieces, timeout_seconds, expected_seconds)

    def _pump(self) -> None:
        """Give what waits to the workers that have room, in their order of precedence."""
        ready = [slot.worker for slot in self._slots if slot.worker is not None and slot.worker.takes_batches]
        while self._waiting:
            if self._waiting[0].future.done():  # its caller has left
                self._waiting.popleft()
            elif roomy := [worker for worker in ready if worker.has_room]:
                worker = min(roomy, key=lambda each: each.precedence)
                worker.send(self._waiting.popleft())
            else:
                break
        if not ready:
            self._fail_waiting()

    def _fail_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            batch.fail(BackendUnavailable(f"no worker of {self.target} is ready"))

    def _take_back(self, batches: list[WorkerRequest]) -> None:
        """Put batches that a worker had not started before everything else; its end pumps them on."""
        self._waiting.extendleft(reversed(batches))

    async def _keep(self, slot: _Slot) -> None:
        """Keep a worker in the slot until cancelled."""
        while True:
            await self._fill(slot)
            assert slot.worker is not None
            worker = slot.worker
            self._pump()
            if slot.leaving is not None:
                await slot.leaving.finish(DRAIN_SECONDS)
                slot.leaving = None
            why = await worker.ended
            self._metrics.worker_restarts.labels(*self._labels, why).inc()
            if why == "memory":
                slot.leaving, slot.num_failures = worker, 0
            else:
                logger.warning("%s of %s: its worker ended (%s), another comes", worker.exit_reason, self.target, why)
                lived = time.monotonic() - worker.ready_since
                slot.num_failures = 1 if lived >= LIVED_SECONDS else slot.num_failures + 1
                slot.worker = None
                await worker.close()

    async def _fill(self, slot: _Slot) -> None:
        """Put a ready worker into the slot, however often that takes; the first failure is told to who waits."""
        while True:
            if slot.num_failures:
                pause = min(FIRST_PAUSE_SECONDS * 2 ** (slot.num_failures - 1), LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(pause)
            try:
                await self._load(slot)
            except BackendError as error:
                slot.num_failures += 1
                if not slot.filled.done():
                    slot.filled.set_exception(error)
                    await asyncio.Event().wait()  # until whoever waited takes the slot away
                logger.warning("a worker of %s could not be replaced: %s", self.target, error)
            else:
                if not slot.filled.done():
                    slot.filled.set_result(None)
                return

    async def _load(self, slot: _Slot) -> None:
        worker = self._spares.take()
        worker.on_change, worker.hand_on = self._pump, self._take_back
        if slot.leaving is None:
            slot.worker = worker
        try:
            description = self._batch((), {"describe": "True"}, self._load_timeout_seconds)
            async with asyncio.timeout(self._load_timeout_seconds):
                await worker.load(self.target.model, self._archive, description)
            self._memory.check(worker.loaded_bytes)
        except BaseException as error:
            await worker.close()  # where that is cancelled, whoever empties the slot finds the worker in it
            if slot.worker is worker:
                slot.worker = None
            if isinstance(error, TimeoutError):
                limit = f"{self._load_timeout_seconds:g} s"
                raise BackendFailed(f"a worker did not load {self.target} within {limit}") from error
            raise
        slot.worker = worker

    async def _empty(self, slot: _Slot, drain_seconds: float) -> None:
        """End the slot's task and its workers."""
        if slot.task is not None:
            slot.task.cancel()
            await asyncio.gather(slot.task, return_exceptions=True)
        if slot.filled.done() and not slot.filled.cancelled():
            slot.filled.exception()  # it has been told, or nobody asks any more
        await asyncio.gather(*(worker.finish(drain_seconds) for worker in slot.workers))
