"""Forward passes with nothing around them, in every shape that uses the cores."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from benchmarks.environment.folders import ROOT
from benchmarks.environment.machine import fair_environment
from benchmarks.tasks.task import Put, Task
from benchmarks.workloads.workload import Workload

SMALL_SIZES, BIG_SIZES = (8, 16, 32, 64), (8, 16, 32)
# The graph alone; and all of a worker's part: decode, stack, graph, rank the classes, make dictionaries.
WHAT = ("forward", "decode")
# (processes, threads of each): both ways to use two cores.
SHAPES = ((1, 2), (2, 1))


def raw(workload: Workload, seconds: float) -> Task:
    """Return the row, of which each size, shape and kind takes so many seconds."""
    sizes = BIG_SIZES if workload.name == "big" else SMALL_SIZES

    def run(_: Sequence[str], put: Put) -> None:
        put("limits", limits(workload.folder, sizes, seconds))

    return Task(f"raw/{workload.name}", ("limits",), run)


def limits(folder: Path, batch_sizes: Sequence[int], seconds: float) -> dict[str, dict[str, float]]:
    """Return the images/s of each kind of pass, for every number of processes, threads and images."""
    found: dict[str, dict[str, float]] = {what: {} for what in WHAT}
    command = [sys.executable, "-m", "benchmarks.peers.raw_passes", "passes", str(folder), *map(str, batch_sizes)]
    for num_processes, num_threads in SHAPES:
        env = {**os.environ, **fair_environment(), "OMP_NUM_THREADS": str(num_threads)}
        with ExitStack() as stack:
            pipes: list[tuple[IO[str], IO[str]]] = []
            for _ in range(num_processes):
                process = stack.enter_context(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT
                    )
                )
                stack.callback(process.kill)
                assert process.stdin is not None
                assert process.stdout is not None
                pipes.append((process.stdin, process.stdout))
            for _, answers in pipes:
                answers.readline()  # ready
            for batch_size in batch_sizes:
                for what in WHAT:
                    for questions, _ in pipes:
                        print(batch_size, what, seconds, file=questions, flush=True)
                    speed = sum(float(answers.readline()) for _, answers in pipes)
                    found[what][f"{num_processes} x {num_threads}, batch {batch_size}"] = round(speed, 1)
    return found
