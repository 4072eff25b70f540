"""The workers of one loaded version: it chooses a worker for each batch, and replaces workers that end."""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.backends.embedded.archive import Unpacked
from service.backends.embedded.spare import Spares
from service.backends.embedded.wire import WorkerAnswer
from service.backends.embedded.worker import ExitCause, NotStartedError, Worker
from service.domain.backend import Target, VersionStatus
from service.errors.gateway import BackendError, BackendFailed, BackendUnavailable

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 30.0
LIVED_SECONDS = 10.0  # one that lived so long is replaced as if it were the first to die
DRAIN_SECONDS = 10.0
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_bytes() -> int:
    """Return the memory of this container or machine."""
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        try:
            amounts.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # not this version of cgroups, or no limit
            continue
    return min(amounts)


@dataclass(frozen=True)
class MemoryLimit:
    """The setting: a number of bytes for each worker, or 0 for its share of half the memory.

    The other half is for the gateway, the page cache and the next worker of a replacement. A share is never less than
    twice what the worker took when it had loaded: a large model is no leak.
    """

    max_bytes: int

    def allowed_bytes(self, num_workers: int, loaded_bytes: int) -> int:
        """Return the limit of a worker that had `loaded_bytes` after loading."""
        return self.max_bytes or max(machine_bytes() // 2 // max(num_workers, 1), 2 * loaded_bytes)

    def check(self, loaded_bytes: int) -> None:
        """Raise BackendFailed if a worker is over its limit as soon as it has loaded: it would be replaced for ever."""
        if self.max_bytes and loaded_bytes > self.max_bytes:
            raise BackendFailed(
                f"a worker takes {loaded_bytes} bytes as soon as it has loaded; "
                f"TORCHGATE_WORKER_MAX_BYTES allows {self.max_bytes}"
            )


@dataclass(slots=True, eq=False)
class _Slot:
    """A place for a worker; its task loads one into it, then replaces those that end."""

    worker: Worker | None = None
    leaving: Worker | None = None  # past its memory limit, until its successor is ready and its batches are answered
    num_failures: int = 0
    task: "asyncio.Task[None] | None" = None

    @property
    def workers(self) -> set[Worker]:
        """Return the workers in it: one, or two during a replacement."""
        return {worker for worker in (self.worker, self.leaving) if worker is not None}


class WorkerPool:
    """A loaded version: a number of slots, each with a worker or about to have one.

    The pool has no queue. Each batch goes to a worker at once and waits in its socket, so that the worker has its
    next batch without asking; `num_slots` of the backend bounds how many there are.
    """

    def __init__(
        self,
        target: Target,
        archive: Unpacked,
        spares: Spares,
        memory: MemoryLimit,
        load_timeout_seconds: float,
        on_restart: Callable[[Target, ExitCause], None],
    ) -> None:
        self.target = target
        self._archive = archive
        self._spares = spares
        self._memory = memory
        self._load_timeout_seconds = load_timeout_seconds
        self._on_restart = on_restart
        self._slots: list[_Slot] = []
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
        """Return how the workers are; a slot that pauses before its next try counts as stopped."""
        states: Counter[str] = Counter(worker.state for worker in self.workers)
        states["stopped"] += sum(not slot.workers for slot in self._slots)
        num_pending = sum(max(0, worker.num_in_flight - 1) for worker in self.workers)
        memory = [0 if slot.worker is None else slot.worker.memory_bytes() for slot in self._slots]
        return VersionStatus(len(self._slots), dict(states), num_pending, memory)

    def description(self) -> Mapping[str, Any]:
        """Return what a ready worker said of itself when it had loaded; waits behind no prediction."""
        for slot in self._slots:
            if slot.worker is not None and slot.worker.state == "ready":
                return slot.worker.description
        raise BackendUnavailable(f"no worker of {self.target} is ready")

    async def resize(self, num_workers: int) -> None:
        """Have `num_workers` workers and wait for the new ones; after a failure none of the new ones is left.

        Raises:
            BackendError: one of them does not load.
        """
        leaving = self._slots[num_workers:]
        del self._slots[num_workers:]
        await asyncio.gather(*(self._empty(slot, DRAIN_SECONDS) for slot in leaving))
        loop = asyncio.get_running_loop()
        new = [_Slot() for _ in range(len(self._slots), num_workers)]
        loads = [loop.create_task(self._load(slot)) for slot in new]
        self._slots += new
        try:
            await asyncio.gather(*loads)
        except BaseException:
            for load in loads:
                load.cancel()
            await asyncio.gather(*loads, return_exceptions=True)
            self._slots = [slot for slot in self._slots if slot not in new]
            await asyncio.gather(*(self._empty(slot, 0) for slot in new))
            raise
        for slot in new:
            slot.task = loop.create_task(self._replace_workers(slot))

    async def ask(
        self, fields: Sequence[tuple[str, bytes]], headers: Sequence[tuple[str, str]], timeout_seconds: float
    ) -> WorkerAnswer:
        """Return a worker's answer to one batch.

        A batch behind one that killed its worker goes to another worker, with its whole limit again.

        Raises:
            BackendError: there is no answer.
        """
        while True:
            worker = self._next_worker()
            try:
                return await worker.send(fields, headers, timeout_seconds)
            except NotStartedError:
                continue

    def check_memory(self, num_workers: int) -> None:
        """Replace the largest worker if it is past its limit, unless another worker is being replaced.

        `num_workers` is the number of workers of all versions together.
        """
        if not self.is_settled or any(slot.leaving is not None for slot in self._slots):
            return
        ready = [slot.worker for slot in self._slots if slot.worker is not None]
        worker = max(ready, key=lambda each: each.memory_bytes())
        num_bytes = worker.memory_bytes()
        if num_bytes > self._memory.allowed_bytes(num_workers, worker.loaded_bytes):
            logger.warning("worker %d of %s takes %d bytes: replaced", worker.pid, self.target, num_bytes)
            # The only one goes on until the next has loaded.
            worker.retire("memory", stop=len(ready) > 1)

    async def close(self, drain_seconds: float) -> None:
        """Accept nothing more, answer what is in flight within `drain_seconds`, end every worker."""
        self._closed = True
        slots, self._slots = self._slots, []
        await asyncio.gather(*(self._empty(slot, drain_seconds) for slot in slots))

    def _next_worker(self) -> Worker:
        if self._closed:
            raise BackendUnavailable(f"{self.target} is being unloaded")
        ready = [slot.worker for slot in self._slots if slot.worker is not None and slot.worker.state == "ready"]
        if not ready:
            raise BackendUnavailable(f"no worker of {self.target} is ready")
        return min(ready, key=Worker.precedence)

    async def _replace_workers(self, slot: _Slot) -> None:
        """Put a new worker into the slot whenever its worker ends, until cancelled."""
        while True:
            worker = slot.worker
            assert worker is not None
            cause = await worker.ended
            self._on_restart(self.target, cause)
            if cause == "memory":
                slot.leaving, slot.num_failures = worker, 0
            else:
                logger.warning("%s of %s ended (%s): replaced", worker.exit_reason, self.target, cause)
                lived = time.monotonic() - worker.ready_since
                slot.num_failures = 1 if lived >= LIVED_SECONDS else slot.num_failures + 1
                slot.worker = None
                await worker.close()
            await self._load_until_ready(slot)
            if slot.leaving is not None:
                await slot.leaving.finish(DRAIN_SECONDS)
                slot.leaving = None

    async def _load_until_ready(self, slot: _Slot) -> None:
        """Load a worker into the slot; pause after each failure, longer each time."""
        while True:
            if slot.num_failures:
                pause = min(FIRST_PAUSE_SECONDS * 2 ** (slot.num_failures - 1), LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(pause)
            try:
                await self._load(slot)
            except BackendError as error:
                slot.num_failures += 1
                logger.warning("a worker of %s could not be replaced: %s", self.target, error)
            else:
                return

    async def _load(self, slot: _Slot) -> None:
        """Load one worker into the slot; a worker that leaves serves until then.

        Raises:
            BackendError: it does not load.
        """
        if self._closed:
            raise BackendUnavailable(f"{self.target} is being unloaded")
        worker = self._spares.take()
        if slot.leaving is None:
            slot.worker = worker
        try:
            await worker.load(self.target.model, self._archive, self._load_timeout_seconds)
            self._memory.check(worker.loaded_bytes)
        except BaseException as error:
            await worker.close()  # if this is cancelled, whoever empties the slot finds the worker in it
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
        await asyncio.gather(*(worker.finish(drain_seconds) for worker in slot.workers))
