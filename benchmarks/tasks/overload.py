"""Twice as much as it can do, for a minute: what a gateway answers, refuses and remembers."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import psutil

from benchmarks.load.closed_loop import closed_loop
from benchmarks.load.open_loop import open_loop
from benchmarks.systems.peers import systems
from benchmarks.tasks.serving import CAPACITY_CLIENTS, OBJECTIVE_MS
from benchmarks.tasks.task import Put, Task
from benchmarks.workloads.workload import Workload

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
            with Memory(running.process) as memory:
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
            "memory_growth": growth(memory.gateway_bytes),
            "speed_after": after / capacity,
        }
        put("overload", {**figures, "outcome": outcome})

    return Task(f"overload-{system}/{workload.name}", ("overload",), run)


class Memory:
    """Samples the gateway's memory while it is entered."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.gateway_bytes: list[int] = []

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.gateway_bytes.append(self._process.memory_info().rss)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def growth(samples: Sequence[int]) -> float:
    """Return by what factor the last quarter lies above the second one, in medians; the first is start-up."""
    quarter = max(len(samples) // 4, 1)
    return median(samples[-quarter:]) / median(samples[quarter : 2 * quarter] or samples)
