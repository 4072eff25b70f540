"""Which cores workers run on: while one version has all the traffic, and as many threads as there are cores, its own.

Left to itself, the kernel moves workers about: one that waits while the gateway reads requests goes to the core of the
other as soon as that has no batch for a moment, and finds none of its weights and tensors in that core's caches.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

Cores = frozenset[int]

# A process that is ready to run and waits longer than it runs has something on its core that does not go away, and
# workers are polite to all others. It must be free to move; whether that has ended is asked after so many looks.
REST_LOOKS = 60
# Less than this says nothing about a core.
LEAST_SECONDS = 0.2


class Crew(Protocol):
    """A version's workers."""

    @property
    def num_asked(self) -> int:
        """Return how many batches they were given so far."""

    @property
    def pids(self) -> Sequence[int]:
        """Return the processes that are ready."""


def times_of(pid: int) -> tuple[float, float]:
    """Return for how many seconds a process' first thread has run, and been ready without a core; 0 if it is gone."""
    try:
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran) / 1e9, int(waited) / 1e9


class CoreKeeper:
    """Looks, when it is told to, who has worked since the last time, and pins or frees processes."""

    def __init__(
        self, num_threads: int, cores: Sequence[int], times: Callable[[int], tuple[float, float]] = times_of
    ) -> None:
        self._num_threads = num_threads
        self._cores = cores
        self._times = times
        self._num_asked: dict[Crew, int] = {}
        self._pinned: dict[int, Cores] = {}
        self._spent: dict[int, tuple[float, float]] = {}  # by who is pinned, up to the last look
        self._num_rests = 0

    def look(self, crews: Iterable[Crew]) -> None:
        """Give a core to each thread of the one crew that has worked; where there are several, the kernel chooses."""
        num_asked = {crew: crew.num_asked for crew in crews}
        busy = [crew for crew, number in num_asked.items() if number != self._num_asked.get(crew, 0)]
        self._num_asked = num_asked
        self._num_rests = REST_LOOKS if self._is_crowded_out() else max(self._num_rests - 1, 0)
        if not busy and not self._num_rests:
            return  # whoever comes next will most likely be who was last
        wanted = self._shares(busy[0].pids) if len(busy) == 1 and not self._num_rests else {}
        self._settle(wanted, {pid for crew in num_asked for pid in crew.pids})

    def _is_crowded_out(self) -> bool:
        """Tell whether one that is pinned has waited for its core longer than it ran since the last look."""
        before, self._spent = self._spent, {pid: self._times(pid) for pid in self._pinned}
        for pid, (ran, waited) in self._spent.items():
            if pid in before:
                ran_before, waited_before = before[pid]
                if waited - waited_before > max(ran - ran_before, LEAST_SECONDS):
                    return True
        return False

    def _shares(self, pids: Sequence[int]) -> Mapping[int, Cores]:
        """Return each process' cores; none where some core would have nobody, or two would share one.

        With fewer threads than cores another gateway may have chosen the same ones, and the rest would idle.
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
