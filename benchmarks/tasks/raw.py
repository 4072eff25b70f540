"""Forward passes with nothing around them, in every shape that uses the cores."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environment.machine import fair_environment
from benchmarks.environment.places import ROOT
from benchmarks.tasks.task import Put
from benchmarks.workloads.workload import Workload

SMALL_SIZES, BIG_SIZES = (8, 16, 32, 64), (8, 16, 32)
# The graph alone; and all of a worker's part: decode, stack, graph, rank the classes, make dictionaries.
WHAT = ("forward", "decode")
# (processes, threads of each): both ways to use two cores.
SHAPES = ((1, 2), (2, 1))


@dataclass(frozen=True)
class Raw:
    """Forward passes with nothing around them."""

    workload: Workload
    seconds: float

    @property
    def key(self) -> str:
        """Return raw/workload."""
        return f"raw/{self.workload.name}"

    @property
    def cells(self) -> Sequence[str]:
        """Return the one that there is."""
        return ["limits"]

    def run(self, wanted: Sequence[str], put: Put) -> None:
        """Measure it."""
        sizes = BIG_SIZES if self.workload.name == "big" else SMALL_SIZES
        put("limits", limits(self.workload.folder, sizes, self.seconds))


def limits(folder: Path, batch_sizes: Sequence[int], seconds: float) -> dict[str, dict[str, float]]:
    """Return the images/s of each kind of pass, for every number of processes, threads and images."""
    found: dict[str, dict[str, float]] = {what: {} for what in WHAT}
    for num_processes, num_threads in SHAPES:
        env = {**os.environ, **fair_environment(), "OMP_NUM_THREADS": str(num_threads)}
        command = [sys.executable, "-m", "benchmarks.peers.raw_passes", "passes", str(folder), *map(str, batch_sizes)]
        with ExitStack() as stack:
            processes = [_Process(command, env) for _ in range(num_processes)]
            for process in processes:
                stack.callback(process.stop)
            for process in processes:
                process.line()  # ready
            for batch_size in batch_sizes:
                shape = f"{num_processes} x {num_threads}, batch {batch_size}"
                for what in WHAT:
                    for process in processes:
                        process.ask(f"{batch_size} {what} {seconds}")
                    found[what][shape] = round(sum(float(process.line()) for process in processes), 1)
    return found


class _Process:
    """One process that runs passes when it is asked to."""

    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=env, cwd=ROOT
        )

    def ask(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()
