"""Which cores workers run on: while one version has all the traffic, and as many threads as there are cores, its own.

Left to itself, the kernel moves workers about: one that waits while the gateway reads requests goes to the core of the
other as soon as that has no batch for a moment, and finds none of its weights and tensors in that core's caches.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

Cores = frozenset[int]


class Crew(Protocol):
    """A version's workers."""

    @property
    def num_batches(self) -> int:
        """Return how many batches they were given so far."""

    @property
    def pids(self) -> Sequence[int]:
        """Return the processes that are ready."""


class CoreKeeper:
    """Looks, when it is told to, who has worked since the last time, and pins or frees processes."""

    def __init__(self, num_threads: int, cores: Iterable[int] | None = None) -> None:
        self._num_threads = num_threads
        self._cores = sorted(os.sched_getaffinity(0) if cores is None else cores)
        self._seen: dict[Crew, int] = {}
        self._pinned: dict[int, Cores] = {}

    def look(self, crews: Iterable[Crew]) -> None:
        """Give a core to each thread of the one crew that has worked; where there are several, the kernel's choice."""
        seen = {crew: crew.num_batches for crew in crews}
        busy = [crew for crew, num_batches in seen.items() if num_batches != self._seen.get(crew, 0)]
        self._seen = seen
        if busy:  # else whoever comes next will most likely be who was last
            running = {pid for crew in seen for pid in crew.pids}
            self._settle(self._shares(busy[0].pids) if len(busy) == 1 else {}, running)

    def _shares(self, pids: Sequence[int]) -> Mapping[int, Cores]:
        """Return each process' cores; none where some core would have nobody, or two would share one.

        With fewer workers than cores another gateway may have chosen the same ones, and the rest would idle.
        """
        if len(pids) < 2 or len(pids) * self._num_threads != len(self._cores):
            return {}
        starts = range(0, len(self._cores), self._num_threads)
        return {
            pid: frozenset(self._cores[start : start + self._num_threads])
            for pid, start in zip(pids, starts, strict=True)
        }

    def _settle(self, wanted: Mapping[int, Cores], running: Set[int]) -> None:
        for pid in (self._pinned.keys() - wanted.keys()) & running:  # another's number may be anybody's by now
            run_on(pid, frozenset(self._cores))
        for pid, cores in wanted.items():
            if self._pinned.get(pid) != cores:
                run_on(pid, cores)
        self._pinned = dict(wanted)


def run_on(pid: int, cores: Cores) -> None:
    """Have all threads of a process run on these cores; one that is gone, or may not be asked, is let be."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread.name), cores)
