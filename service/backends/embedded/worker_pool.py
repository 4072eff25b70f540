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
from service.config.settings import Settings
from service.domain.backend import Target, VersionStatus
from service.errors.gateway import BackendError, BackendFailed, BackendUnavailable

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 30.0
MOST_DOUBLINGS = 10  # of the first pause; 2**n overflows a float at last
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


def allowed_bytes(max_bytes: int, num_workers: int, loaded_bytes: int) -> int:
    """Return the limit of a worker that had `loaded_bytes` after loading: the setting, or its share of half the memory.

    The other half is for the gateway, the page cache and the next worker of a replacement. A share is never less than
    twice what the worker took when it had loaded: a large model is no leak.
    """
    return max_bytes or max(machine_bytes() // 2 // max(num_workers, 1), 2 * loaded_bytes)


def check_loaded(max_bytes: int, loaded_bytes: int) -> None:
    """Raise BackendFailed if a worker is over the setting as soon as it has loaded: it would be replaced for ever."""
    if 0 < max_bytes < loaded_bytes:
        allowed = f"TORCHGATE_WORKER_MAX_BYTES allows {max_bytes}"
        raise BackendFailed(f"a worker takes {loaded_bytes} bytes as soon as it has loaded; {allowed}")


@dataclass(slots=True, eq=False)
class _Slot:
    """A place for a worker; its task loads one into it, then replaces those that end."""

    worker: Worker | None = None
    leaving: Worker | None = None  # past its memory limit, until its successor is ready and its batches are answered
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
        settings: Settings,
        on_restart: Callable[[Target, ExitCause], None],
    ) -> None:
        self.target = target
        self.archive = archive
        self._spares = spares
        self._max_bytes = settings.worker_max_bytes
        self._load_timeout_seconds = settings.load_timeout_seconds
        self._on_restart = on_restart
        self._slots: list[_Slot] = []
        self._closed = False

    @property
    def is_settled(self) -> bool:
        """Tell whether there are slots, and every one has a worker that is ready."""
        states = [slot.worker.state if slot.worker else "stopped" for slot in self._slots]
        return set(states) == {"ready"}

    @property
    def workers(self) -> Sequence[Worker]:
        """Return the workers that run now."""
        return [worker for slot in self._slots for worker in slot.workers]

    def status(self) -> VersionStatus:
        """Return how the workers are; a slot that pauses before its next try counts as stopped."""
        states: Counter[str] = Counter(worker.state for worker in self.workers)
        states["stopped"] += sum(not slot.workers for slot in self._slots)
        num_pending = sum(max(0, len(worker.in_flight) - 1) for worker in self.workers)
        memory = [0 if slot.worker is None else slot.worker.process.memory_bytes() for slot in self._slots]
        return VersionStatus(len(self._slots), dict(states), num_pending, memory)

    def description(self) -> Mapping[str, Any]:
        """Return what a ready worker said of itself when it had loaded; waits behind no prediction."""
        return self._next_worker().description

    async def resize(self, num_workers: int) -> None:
        """Have `num_workers` workers and wait for the new ones.

        If one of them does not load, it raises BackendError and ends all the new ones.
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
        self,
        fields: Sequence[tuple[str, bytes]],
        headers: Sequence[tuple[str, str]],
        timeout_seconds: float,
        *,
        is_large: bool = False,
    ) -> WorkerAnswer:
        """Return a worker's answer to one batch, or raise BackendError.

        A batch behind one that killed its worker goes to another worker, with its whole limit again. Behind one that
        `is_large` no other goes as long as there is another worker.
        """
        while True:
            worker = self._next_worker()
            try:
                return await worker.send(fields, headers, timeout_seconds, is_large=is_large)
            except NotStartedError:
                continue

    def check_memory(self, num_workers: int) -> None:
        """Replace the largest worker if it is past its limit, unless another worker is being replaced.

        `num_workers` is the number of workers of all versions together.
        """
        if not self.is_settled or any(slot.leaving is not None for slot in self._slots):
            return
        worker = max(self.workers, key=lambda each: each.process.memory_bytes())
        num_bytes = worker.process.memory_bytes()
        if num_bytes > allowed_bytes(self._max_bytes, num_workers, worker.loaded_bytes):
            logger.warning("worker %d of %s takes %d bytes: replaced", worker.process.pid, self.target, num_bytes)
            # The only one goes on until the next has loaded.
            worker.retire("memory", stop=len(self._slots) > 1)

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
        """Put a new worker into the slot whenever its worker ends, until cancelled; pause longer after each failure."""
        num_failures = 0
        while True:
            worker = slot.worker
            assert worker is not None
            cause = await worker.ended
            self._on_restart(self.target, cause)
            if cause == "memory":
                slot.leaving, num_failures = worker, 0
            else:
                logger.warning("%s of %s ended (%s): replaced", worker.exit_reason, self.target, cause)
                lived = time.monotonic() - worker.ready_since
                num_failures = 1 if lived >= LIVED_SECONDS else num_failures + 1
                slot.worker = None
                await worker.close()
            while slot.worker is slot.leaving:  # until another one has loaded
                if num_failures:
                    pause = FIRST_PAUSE_SECONDS * 2 ** min(num_failures - 1, MOST_DOUBLINGS)
                    await asyncio.sleep(min(pause, LONGEST_PAUSE_SECONDS))
                try:
                    await self._load(slot)
                except BackendError as error:
                    num_failures += 1
                    logger.warning("a worker of %s could not be replaced: %s", self.target, error)
            if slot.leaving is not None:
                await slot.leaving.finish(DRAIN_SECONDS)
                slot.leaving = None

    async def _load(self, slot: _Slot) -> None:
        """Load one worker into the slot, or raise BackendError; a worker that leaves serves until then."""
        if self._closed:
            raise BackendUnavailable(f"{self.target} is being unloaded")
        worker = self._spares.take()
        if slot.leaving is None:
            slot.worker = worker
        try:
            await worker.load(self.target.model, self.archive, self._load_timeout_seconds)
            check_loaded(self._max_bytes, worker.loaded_bytes)
        except BaseException:
            await worker.close()  # if this is cancelled, whoever empties the slot finds the worker in it
            if slot.worker is worker:
                slot.worker = None
            raise
        slot.worker = worker

    async def _empty(self, slot: _Slot, drain_seconds: float) -> None:
        """End the slot's task and its workers."""
        if slot.task is not None:
            slot.task.cancel()
            await asyncio.gather(slot.task, return_exceptions=True)
        await asyncio.gather(*(worker.finish(drain_seconds) for worker in slot.workers))
