"""Runs the rows in interleaved repeats; a cell that was measured before is not measured again."""

import subprocess
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import httpx

from benchmarks.suite.results import Results
from benchmarks.tasks.task import Task
from benchmarks.workloads.workload import Unavailable


def rotated(tasks: Sequence[Task], repeat: int) -> list[Task]:
    """Return the tasks in another order for each repeat, so that none always follows the same one."""
    shift = repeat * 2 % max(len(tasks), 1)
    return [*tasks[shift:], *tasks[:shift]]


def matches(key: str, only: str) -> bool:
    """Tell whether `only`, such as workers or */big or mosec/small/64, names system/workload/cell; "" names all."""
    pattern = only.split("/") if only else []
    return all(fnmatchcase(*pair) for pair in zip(key.split("/"), pattern, strict=False))


def measure(tasks: Sequence[Task], repeats: int, results: Results, only: str = "") -> None:
    """Measure every cell that is missing, or again those that `only` names; failures are kept in the results."""
    wanted: dict[tuple[int, str], list[str]] = {}
    for repeat in range(repeats):
        for task in tasks:
            cells = [cell for cell in task.cells if matches(f"{task.key}/{cell}", only)]
            if only:
                for cell in cells:
                    results.path(task.key, cell, repeat).unlink(missing_ok=True)
            wanted[repeat, task.key] = [cell for cell in cells if not results.path(task.key, cell, repeat).exists()]
    num_cells, num_done, started = sum(map(len, wanted.values())), 0, time.monotonic()
    print(f"{num_cells} cells to measure in {repeats} interleaved repeats", flush=True)
    for repeat in range(repeats):
        for task in rotated(tasks, repeat):
            cells = wanted[repeat, task.key]
            num_done += len(cells)
            if not cells or task.key in results.failures:
                continue

            def put(cell: str, outcome: dict[str, Any], task: Task = task, repeat: int = repeat) -> None:
                results.put(task.key, cell, repeat, outcome)
                print(f"  {task.key}/{cell}: {brief(outcome)}", flush=True)

            try:
                task.run(cells, put)
            except Unavailable as reason:
                results.failures[task.key] = str(reason)
                print(f"{task.key}: not measured: {reason}", flush=True)
            except (RuntimeError, OSError, httpx.HTTPError, subprocess.SubprocessError) as error:
                # The other rows can still be measured; the targets that need this one will say so.
                results.failures[task.key] = f"{type(error).__name__}: {error}"
                print(f"{task.key}: FAILED: {error}", flush=True)
            minutes = (time.monotonic() - started) / 60
            left = f"{minutes:.1f} min, about {minutes / num_done * (num_cells - num_done):.0f} left"
            print(f"[{num_done}/{num_cells}] repeat {repeat + 1}/{repeats}, {left}", flush=True)


def brief(outcome: dict[str, Any]) -> str:
    """Return an outcome in one line."""
    if "throughput" in outcome:
        text = f"{outcome['throughput']:.0f}/s, p50 {outcome['p50_ms']:.1f} ms, p99 {outcome['p99_ms']:.1f} ms"
        return text + (f", {outcome['num_errors']} errors" if outcome["num_errors"] else "")
    plain = {name: value for name, value in outcome.items() if isinstance(value, int | float)}
    return ", ".join(f"{name} {value:.4g}" for name, value in plain.items())
