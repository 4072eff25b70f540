"""`make bench`: measure what is missing, show everything, hold the targets against it."""

import json
import shutil
import time
from typing import Any

from benchmarks.environment.folders import PUBLISHED, WORK
from benchmarks.report import tables
from benchmarks.report.plot import draw
from benchmarks.report.targets import lines
from benchmarks.suite import runner
from benchmarks.suite.modes import Mode
from benchmarks.suite.plan import tasks
from benchmarks.suite.results import Results, configuration
from benchmarks.training.int8_accuracy import static_against_fp32
from benchmarks.workloads.prepare import prepare
from benchmarks.workloads.workload import Name, Unavailable, Workload

PLOTTED = ("small-jpeg", "big")


def run_bench(mode: Mode, only: str, *, fresh: bool, publish: bool) -> int:
    """Measure what is missing, show everything, and return the exit status."""
    started = time.monotonic()
    workloads: dict[Name, Workload] = {}
    failures: dict[str, str] = {}
    for name in mode.rows:
        try:
            workloads[name] = prepare(name, quick=mode.name == "quick")
        except Unavailable as reason:
            failures[f"*/{name}"] = str(reason)
    archives = [each.archive for each in workloads.values()]
    results = Results(WORK / "runs" / configuration(mode.name, archives), failures)
    if fresh:
        shutil.rmtree(results.folder, ignore_errors=True)
    results.folder.mkdir(parents=True, exist_ok=True)
    accuracy = measure_accuracy(results, may_train=not only) if mode.seeds else None
    runner.measure(tasks(mode, workloads), mode.repeats, results, only)
    found = lines(results, accuracy)
    print("\n" + tables.write(results, found, accuracy))
    for workload in PLOTTED:
        if draw(results, results.folder / f"{workload}.png", workload):
            print(f"plot: {results.folder / workload}.png")
    print(f"tables and JSON: {results.folder}, {(time.monotonic() - started) / 60:.1f} min")
    if publish:
        PUBLISHED.mkdir(exist_ok=True)
        for path in (*results.folder.glob("*.png"), results.folder / "results.md"):
            shutil.copy(path, PUBLISHED / path.name)
        print(f"published: {PUBLISHED}")
    short = [line for line in found if not line.is_met]
    print(f"{len(short)} of {len(found)} lines fall short" if short else "every line is met")
    return 1 if short else 0


def measure_accuracy(results: Results, *, may_train: bool) -> dict[str, Any] | None:
    """Return what static quantization costs, or None where it is not measured."""
    path = results.folder / "accuracy.json"
    if not path.exists():
        if not may_train:
            return None
        try:
            path.write_text(json.dumps(static_against_fp32()))
        except Unavailable as reason:
            results.failures["accuracy"] = str(reason)
            return None
    document: dict[str, Any] = json.loads(path.read_text())
    return document
