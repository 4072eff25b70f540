"""Time and memory of each parallel strategy on the same run, and what a second process of DDP brings."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environment.folders import ROOT
from benchmarks.training.table import Figure, Row, Table

STRATEGIES = (
    ("single", 1),
    ("data-parallel", 1),
    ("ddp", 1),
    ("ddp", 2),
    ("model-parallel", 2),
    ("hybrid", 4),
    ("fsdp", 2),
    ("rpc", 2),
    ("elastic", 2),
)
IN_ONE_PROCESS = ("single", "data-parallel")  # which are told no number
SPEED, SECONDS, PEAK = "images/s", "whole run, s", "most memory of a process, MB"
LIMIT_SECONDS = 900


def strategies(folder: Path, preset: str, num_epochs: int) -> Table:
    """Measure trainings of the preset in the folder, one thread for each process; the first epoch is not counted."""
    prepared = folder / "prepared"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "training", "prepare", "--preset", preset, "--runs", str(prepared)]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), check=True, capture_output=True, text=True)
    run = Path(re.findall(r"^run: (.*)$", done.stdout, re.MULTILINE)[-1])
    rows: dict[str, Row] = {}
    for strategy, num_processes in STRATEGIES:
        name = f"{strategy}, {num_processes} process{'es' if num_processes > 1 else ''}"
        chosen = ["--strategy", strategy]
        if strategy not in IN_ONE_PROCESS:
            chosen += ["--processes", str(num_processes)]
        copied = shutil.copytree(run, folder / name.replace(", ", "-").replace(" ", "-"))
        print(f"  {name}", flush=True)
        rows[name] = measure(copied, ["--epochs", str(num_epochs), *chosen])
    table = Table(
        name="strategies",
        title="Parallel strategies",
        note=(
            f"ResNet-20, preset {preset}, {num_epochs} epochs, gloo, one thread for each process on "
            f"{len(os.sched_getaffinity(0))} cores. By the clock on the wall: {SPEED} are the median of the epochs "
            "after the first, with the least and the largest; the other figures are of one run."
        ),
        unit="",
        columns=(SPEED, SECONDS, PEAK),
        rows=rows,
    )
    one, two = table.median("ddp, 1 process", SPEED), table.median("ddp, 2 processes", SPEED)
    if one and two:
        table.findings.append(f"DDP with 2 processes trains {two / one:.2f} times as many images/s as with 1.")
    return table


def measure(run: Path, arguments: Sequence[str]) -> Row:
    """Train the prepared run; return its figures, or the last words of a training that failed."""
    log = run / "training.log"
    command = [sys.executable, "-m", "benchmarks.training.peak", str(LIMIT_SECONDS), str(log)]
    command += [sys.executable, "-m", "training", "train", "--run", str(run), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    if found["status"] != 0:
        return last_words(log.read_text(errors="replace")) or f"it ended with status {found['status']}"
    num_images = json.loads((run / "data" / "dataset.json").read_text())["num_samples"]["train"]
    epochs = json.loads((run / "history.json").read_text())["epochs"]
    speeds = sorted(num_images / each["seconds"] for each in epochs[1:])
    return {
        SPEED: Figure(median(speeds), speeds[0], speeds[-1]),
        SECONDS: Figure.exactly(found["seconds"]),
        PEAK: Figure.exactly(found["peak_bytes"] / 1e6),
    }


def last_words(log: str) -> str:
    """Return the line of a log that says best why its program failed, fit for a table."""
    lines = [line.strip(" │╭╮╰╯─") for line in log.splitlines()]
    lines = [line for line in lines if line]
    errors = [line for line in lines if re.match(r"(\w*[Ee]rror\b|error:)", line)]
    words = (errors or lines or [""])[-1]
    return words.removeprefix("error: ").replace("|", "/")


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
