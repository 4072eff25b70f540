"""`make bench`: measure what is missing, show everything, hold the targets against it."""

import json
import shutil
import time
from typing import Any

from benchmarks.environment.folders import PUBLISHED, WORK
from benchmarks.report import tables
from benchmarks.report.plot import draw
from benchmarks.report.targets import all_met, lines
from benchmarks.suite import matrix
from benchmarks.suite.modes import Mode
from benchmarks.suite.plan import tasks
from benchmarks.suite.results import Results, configuration
from benchmarks.training.int8_accuracy import static_against_fp32
from benchmarks.workloads.prepare import prepare
from benchmarks.workloads.workload import Name, Unavailable, Workload

ACCURACY = "accuracy.json"
PLOTTED = ("small-jpeg", "big")


def run_bench(mode: Mode, only: str, *, fresh: bool, publish: bool) -> int:
    """Measure what is missing, show everything, and return the exit status."""
    started = time.monotonic()
    workloads, missing = build(mode)
    results = Results(WORK / "runs" / configuration(mode.name, [each.archive for each in workloads.values()]))
    if fresh:
        shutil.rmtree(results.folder, ignore_errors=True)
    results.failures |= missing
    accuracy = measure_accuracy(mode, results, may_train=not only)
    matrix.measure(tasks(mode, workloads), mode.repeats, results, only)
    found = lines(results, accuracy)
    minutes = (time.monotonic() - started) / 60
    results.folder.mkdir(parents=True, exist_ok=True)
    print("\n" + tables.write(results, found, accuracy, minutes))
    for workload in PLOTTED:
        if draw(results, results.folder / f"{workload}.png", workload):
            print(f"plot: {results.folder / workload}.png")
    print(f"tables and JSON: {results.folder}, {minutes:.1f} min")
    if publish:
        PUBLISHED.mkdir(exist_ok=True)
        for path in (*results.folder.glob("*.png"), results.folder / "results.md"):
            shutil.copy(path, PUBLISHED / path.name)
        print(f"published: {PUBLISHED}")
    short = [line for line in found if not line.is_met]
    print(f"{len(short)} of {len(found)} lines fall short" if short else "every line is met")
    return 0 if all_met(found) else 1


def build(mode: Mode) -> tuple[dict[Name, Workload], dict[str, str]]:
    """Return the workloads, and why others are missing."""
    workloads: dict[Name, Workload] = {}
    missing: dict[str, str] = {}
    for name in mode.rows:
        try:
            workloads[name] = prepare(name, quick=mode.name == "quick")
        except Unavailable as reason:
            missing[f"*/{name}"] = str(reason)
    return workloads, missing


def measure_accuracy(mode: Mode, results: Results, *, may_train: bool) -> dict[str, Any] | None:
    """Return what static quantization costs, or None where it is not measured."""
    if not mode.seeds:
        return None
    path = results.folder / ACCURACY
    if not path.exists() and not may_train:
        return None
    if not path.exists():
        try:
            found = static_against_fp32()
        except Unavailable as reason:
            results.failures["accuracy"] = str(reason)
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    document: dict[str, Any] = json.loads(path.read_text())
    return document
