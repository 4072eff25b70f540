"""Forward passes and nothing around them: what the cores could do if serving cost nothing.

`python -m benchmarks.raw answers FOLDER` leaves each body's answer in the folder; `passes FOLDER BATCH_SIZE...` is one
process of a measurement: for each line "BATCH_SIZE WHAT SECONDS" on its standard input it prints images/s.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.places import ROOT
from service.backends.embedded.allocator import memory_environment

EXPECTED = "expected.json"
BATCH_SIZES = {"small": (8, 16, 32, 64), "small-int8": (8, 16, 32, 64), "big": (8, 16, 32)}
WHAT = ("forward", "decode")  # without and with decoding the images
# (processes, threads of each): both ways to use two cores.
SHAPES = ((1, 2), (2, 1))


def limits(folder: Path, batch_sizes: Sequence[int], seconds: float) -> dict[str, dict[str, float]]:
    """Return the images/s without and with decoding, each for every number of processes, threads and images."""
    found: dict[str, dict[str, float]] = {what: {} for what in WHAT}
    for num_processes, num_threads in SHAPES:
        threads = {"OMP_NUM_THREADS": str(num_threads), "OMP_WAIT_POLICY": "PASSIVE"}
        env = {**memory_environment(), **os.environ, **threads}
        command = [sys.executable, "-m", "benchmarks.raw", "passes", str(folder), *map(str, batch_sizes)]
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


def run_passes(folder: Path, *batch_sizes: str) -> None:
    """Be one process of a measurement, warm for these sizes."""
    from benchmarks.peers.classify import Classifier  # noqa: PLC0415 - the harness itself needs no torch

    classifier = Classifier(folder, [int(size) for size in batch_sizes])
    contents = [path.read_bytes() for path in bodies(folder)]
    print("ready", flush=True)
    for line in sys.stdin:
        size, what, seconds = line.split()
        batch = [contents[number % len(contents)] for number in range(int(size))]
        decoded = [classifier.decode(content) for content in batch]
        num_images, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < float(seconds):
            classifier.run([classifier.decode(content) for content in batch] if what == "decode" else decoded)
            num_images += len(batch)
        print(num_images / elapsed, flush=True)


def write_answers(folder: Path) -> None:
    """Leave the most probable class of every body: what every system must answer."""
    from benchmarks.peers.classify import Classifier  # noqa: PLC0415

    classifier = Classifier(folder)
    paths = bodies(folder)
    answers = classifier.run([classifier.decode(path.read_bytes()) for path in paths])
    expected = {path.stem: answer["top_k"][0]["label"] for path, answer in zip(paths, answers, strict=True)}
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1))


def bodies(folder: Path) -> list[Path]:
    """Return the image files of a workload's folder."""
    return [path for path in sorted((folder / "bodies").iterdir()) if path.suffix != ".json"]


if __name__ == "__main__":
    {"answers": write_answers, "passes": run_passes}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
