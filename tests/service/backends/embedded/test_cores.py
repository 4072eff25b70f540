"""Which cores workers run on, with real processes in their place."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.backends.embedded.cores import LEAST_SECONDS, REST_LOOKS, CoreKeeper, run_on, times_of

CORES = sorted(os.sched_getaffinity(0))[:2]

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="there is one core only, and nothing to choose")


@dataclass(eq=False)
class Crew:
    """A version that was given so many batches."""

    pids: list[int] = field(default_factory=list)
    num_asked: int = 0

    def cores(self) -> list[list[int]]:
        return [sorted(os.sched_getaffinity(pid)) for pid in self.pids]


@pytest.fixture
def crews() -> Iterator[list[Crew]]:
    """Yield two crews of two processes with two threads each."""
    code = "import threading, sys; threading.Thread(target=sys.stdin.read).start(); print(flush=True); sys.stdin.read()"
    found, processes = [Crew(), Crew()], []
    try:
        for crew in found * 2:
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=True
            )
            processes.append(process)
            assert process.stdout is not None
            process.stdout.readline()
            run_on(process.pid, frozenset(CORES))  # of a larger machine, too
            crew.pids.append(process.pid)
        yield found
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def all_threads(pid: int) -> set[frozenset[int]]:
    return {frozenset(os.sched_getaffinity(int(each.name))) for each in Path(f"/proc/{pid}/task").iterdir()}


def test_whoever_works_alone_has_a_core_for_each_worker(crews: list[Crew]) -> None:
    alone, idle = crews
    free = idle.cores()
    keeper = CoreKeeper(1, CORES)
    keeper.look(crews)
    assert alone.cores() == free
    alone.num_asked = 5
    keeper.look(crews)
    assert alone.cores() == [[core] for core in CORES]
    assert [all_threads(pid) for pid in alone.pids] == [{frozenset({core})} for core in CORES]
    assert idle.cores() == free
    keeper.look(crews)
    assert alone.cores() == [[core] for core in CORES], "nobody has worked since"


def test_where_several_work_the_kernel_chooses(crews: list[Crew]) -> None:
    first, second = crews
    keeper = CoreKeeper(1, CORES)
    first.num_asked = 1
    keeper.look(crews)
    first.num_asked, second.num_asked = 2, 1
    keeper.look(crews)
    assert first.cores() == second.cores() == [CORES, CORES]
    second.num_asked = 2
    keeper.look(crews)
    assert (first.cores(), second.cores()) == ([CORES, CORES], [[core] for core in CORES])


def test_a_worker_that_is_replaced_leaves_its_core_to_the_next_one(crews: list[Crew]) -> None:
    crew, others = crews
    keeper = CoreKeeper(1, CORES)
    crew.num_asked = 1
    keeper.look([crew])
    crew.num_asked, old, crew.pids[0] = 2, crew.pids[0], others.pids[0]
    keeper.look([crew])
    assert crew.cores() == [[core] for core in CORES]
    assert sorted(os.sched_getaffinity(old)) == CORES[:1], "its number may be another process's by now"


def test_a_worker_that_waits_for_its_core_longer_than_it_runs_is_freed_for_a_while(crews: list[Crew]) -> None:
    crew = crews[0]
    spent = dict.fromkeys(crew.pids, (0.0, 0.0))
    keeper = CoreKeeper(1, CORES, spent.__getitem__)

    def look(ran: float, waited: float) -> list[list[int]]:
        """Look after the first worker ran and waited for so many seconds, and the second never waited."""
        crew.num_asked += 1
        spent[crew.pids[0]] = spent[crew.pids[0]][0] + ran, spent[crew.pids[0]][1] + waited
        keeper.look([crew])
        return crew.cores()

    pinned = [[core] for core in CORES]
    assert look(0.1, 5.0) == pinned, "nobody was pinned when it waited"
    assert look(0.0, 0.0) == pinned
    assert look(0.0, 0.9 * LEAST_SECONDS) == pinned, "that is nothing"
    assert look(0.6, 0.4) == pinned
    assert look(0.4, 0.6) == [CORES, CORES]
    for _ in range(REST_LOOKS - 1):
        assert look(0.4, 0.6) == [CORES, CORES]
    assert look(0.4, 0.6) == pinned, "it is tried again"


def test_a_process_tells_how_long_it_ran() -> None:
    ran, waited = times_of(os.getpid())
    assert ran > 0
    assert waited >= 0
    assert times_of(2**22 + 1) == (0.0, 0.0)  # no process has such a number


@pytest.mark.parametrize(("num_threads", "num_workers"), [(1, 1), (2, 2)])
def test_nobody_is_pinned_where_there_are_not_as_many_threads_as_cores(
    crews: list[Crew], num_threads: int, num_workers: int
) -> None:
    crew = crews[0]
    del crew.pids[num_workers:]
    free = crew.cores()
    crew.num_asked = 1
    CoreKeeper(num_threads, CORES).look([crew])
    assert crew.cores() == free


def test_a_process_that_is_gone_is_let_be(crews: list[Crew]) -> None:
    crew = crews[0]
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    crew.pids[0], crew.num_asked = gone.pid, 1
    CoreKeeper(1, CORES).look([crew])
    assert sorted(os.sched_getaffinity(crew.pids[1])) == CORES[1:]
