"""A run's report, as Markdown and as JSON: every cell, the limits, the targets."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.environment.machine import allocator, machine
from benchmarks.report.targets import Line
from benchmarks.suite.results import Results
from benchmarks.tasks.raw import WHAT

PACKAGES = ("torch", "torchserve", "litserve", "mosec", "uvicorn", "fastapi")
FAIRNESS = "every process, raw passes too, with {allocator} and one thread for each worker; `stock` is as it comes"


def cell_rows(results: Results) -> list[str]:
    """Return a row for each cell of the closed loop: median and spread over the repeats."""
    rows = ["| system | workload | load | requests/s | p50, ms | p99, ms | errors |", "|---|---|---|---|---|---|---|"]
    for task, cell in sorted(results.cells(), key=_by_load):
        outcomes = results.outcomes(task, cell)
        system, workload = task.split("/")
        if "throughput" in outcomes[0]:
            figures = [results.series(task, cell, name) for name in ("throughput", "p50_ms", "p99_ms")]
            errors = sum(outcome["num_errors"] for outcome in outcomes)
            clients = cell.removeprefix("direct-")
            kind = f"{clients} client{'s' if clients != '1' else ''}"
            kind += "" if clients == cell else ", past the gateway"
            rows.append(f"| {system} | {workload} | {kind} | {' | '.join(map(str, figures))} | {errors} |")
    return rows


def raw_rows(results: Results) -> list[str]:
    """Return a row for each workload's limits."""
    rows = [
        "| raw passes | the graph alone, images/s | processes x threads | decode, stack, graph, rank, answer | |",
        "|---|---|---|---|---|",
    ]
    for task, _ in results.cells():
        if task.startswith("raw/"):
            workload = task.removeprefix("raw/")
            limits = [limit for what in WHAT if (limit := results.limit(workload, what))]
            rows.append(f"| {workload} | {' | '.join(f'{images} | {shape}' for shape, images in limits)} |")
    return rows


def target_rows(found: Sequence[Line]) -> list[str]:
    """Return a row for each target."""
    rows = ["| line | what | figure | target | |", "|---|---|---|---|---|"]
    for line in found:
        figure = "not measured" if line.figure is None else f"{line.figure:.3g}{line.unit}"
        verdict = "ok" if line.is_met else "FALLS SHORT"
        rows.append(f"| {line.number} | {line.what} | {figure} | {line.sense} {line.bound:g}{line.unit} | {verdict} |")
    return rows


def write(results: Results, found: Sequence[Line], accuracy: dict[str, Any] | None) -> str:
    """Leave results.md and results.json beside the cells, and return the Markdown."""
    where = f"{machine(PACKAGES)}; {FAIRNESS.format(allocator=allocator())}"
    generator = [
        each["generator_us"] for cell in results.cells() for each in results.outcomes(*cell) if "generator_us" in each
    ]
    if generator:
        where += f"; wrk takes {median(generator):.0f} µs of a core for a request"
    parts = [f"{where}. Medians over the repeats (least-largest). Mode {results.folder.name}."]
    parts += ["\n".join(rows) for rows in (cell_rows(results), raw_rows(results)) if len(rows) > 2]
    if accuracy is not None:
        parts.append(
            "int8-static against fp32, points of accuracy over the seeds: "
            f"{accuracy['mean']:+.2f} (95 % interval {accuracy['low']:+.2f} to {accuracy['high']:+.2f})"
        )
    if results.failures:
        parts.append("\n".join(f"- {task} was not measured: {why}" for task, why in sorted(results.failures.items())))
    parts.append("\n".join(target_rows(found)))
    text = "\n\n".join(parts) + "\n"
    document = {
        "machine": where,
        "targets": [{**asdict(line), "is_met": line.is_met} for line in found],
        "accuracy": accuracy,
        "failures": results.failures,
        "cells": {f"{task}/{cell}": results.outcomes(task, cell) for task, cell in results.cells()},
    }
    (results.folder / "results.md").write_text(text)
    (results.folder / "results.json").write_text(json.dumps(document, indent=1))
    return text


def _by_load(place: tuple[str, str]) -> tuple[str, str, int, str]:
    task, cell = place
    kind, _, number = cell.rpartition("-")
    return task.split("/")[1], kind, int(number) if number.isdecimal() else 0, task
