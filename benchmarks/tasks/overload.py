"""Twice the capacity for a minute: what a gateway answers, what it refuses, and the memory that it takes."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

import psutil

from benchmarks.load.closed_loop import closed_loop
from benchmarks.load.open_loop import open_loop
from benchmarks.systems.peers import systems
from benchmarks.tasks.task import Put, Task
from benchmarks.workloads.workload import Workload

CAPACITY_CLIENTS = 64  # of the closed loop whose throughput is the capacity
OBJECTIVE_MS = 250
OVERLOAD = 2.0
SAMPLE_SECONDS = 0.25
RECOVERY_SECONDS = 2.0


def overload(system: str, workload: Workload, seconds: float, calm_seconds: float) -> Task:
    """Return the row: an open loop at OVERLOAD times the capacity between two calm closed loops."""

    def run(_: Sequence[str], put: Put) -> None:
        with systems()[system](workload) as running:
            endpoint = running.endpoint
            closed_loop(endpoint, CAPACITY_CLIENTS, calm_seconds)
            capacity = closed_loop(endpoint, CAPACITY_CLIENTS, calm_seconds)["throughput"]
            hurried = replace(endpoint, headers={**endpoint.headers, "X-Deadline-Ms": str(OBJECTIVE_MS)})
            with memory_of(running.process) as num_bytes:
                outcome = open_loop(hurried, capacity * OVERLOAD, seconds, OBJECTIVE_MS)
            time.sleep(RECOVERY_SECONDS)
            after = closed_loop(endpoint, CAPACITY_CLIENTS, calm_seconds)["throughput"]
        answers = outcome["statuses"]
        refused = answers.get("429", {"count": 0, "p99_ms": 0.0})
        good = answers.get("200", {"within_objective": 0})["within_objective"]
        figures = {
            "capacity": capacity,
            "good_per_capacity": good / seconds / capacity,
            "refused": refused["count"],
            "refused_p99_ms": refused["p99_ms"],
            "other_errors": sum(each["count"] for status, each in answers.items() if status not in ("200", "429")),
            "memory_growth": growth(num_bytes),
            "speed_after": after / capacity,
        }
        put("overload", {**figures, "outcome": outcome})

    return Task(f"overload-{system}/{workload.name}", ("overload",), run)


@contextmanager
def memory_of(process: psutil.Process) -> Iterator[list[int]]:
    """Collect samples of the process' resident bytes while entered."""
    over, num_bytes = threading.Event(), list[int]()

    def sample() -> None:
        while not over.wait(SAMPLE_SECONDS):
            num_bytes.append(process.memory_info().rss)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield num_bytes
    finally:
        over.set()
        thread.join()


def growth(samples: Sequence[int]) -> float:
    """Return the median of the last quarter over that of the second one; the first one is start-up."""
    quarter = max(len(samples) // 4, 1)
    return median(samples[-quarter:]) / median(samples[quarter : 2 * quarter] or samples)
