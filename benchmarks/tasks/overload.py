"""Twice as much as it can do, for a minute: what a gateway answers, refuses and remembers."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import psutil

from benchmarks.environment.processes import family_of
from benchmarks.load.closed_loop import closed_loop
from benchmarks.load.open_loop import open_loop
from benchmarks.systems.peers import systems
from benchmarks.tasks.serving import CAPACITY_CLIENTS
from benchmarks.tasks.task import Put
from benchmarks.workloads.workload import Workload

OVERLOAD = 2.0
OBJECTIVE_MS = 250
SAMPLE_SECONDS = 0.25
RECOVERY_SECONDS = 2.0


@dataclass(frozen=True)
class Overload:
    """An open loop at OVERLOAD times the capacity, then a closed loop again."""

    system: str
    workload: Workload
    seconds: float
    calm_seconds: float  # of the closed loops before and after

    @property
    def key(self) -> str:
        """Return its key."""
        return f"overload-{self.system}/{self.workload.name}"

    @property
    def cells(self) -> Sequence[str]:
        """Return the one that there is."""
        return ["overload"]

    def run(self, wanted: Sequence[str], put: Put) -> None:
        """Measure it."""
        with systems()[self.system](self.workload) as running:
            endpoint = running.endpoint
            closed_loop(endpoint, CAPACITY_CLIENTS, self.calm_seconds)
            capacity = closed_loop(endpoint, CAPACITY_CLIENTS, self.calm_seconds)["throughput"]
            hurried = replace(endpoint, headers={**endpoint.headers, "X-Deadline-Ms": str(OBJECTIVE_MS)})
            with Memory(running.process) as memory:
                outcome = open_loop(hurried, capacity * OVERLOAD, self.seconds, OBJECTIVE_MS)
            time.sleep(RECOVERY_SECONDS)
            after = closed_loop(endpoint, CAPACITY_CLIENTS, self.calm_seconds)["throughput"]
        answers = outcome["statuses"]
        refused = answers.get("429", {"count": 0, "p99_ms": 0.0})
        good = answers.get("200", {"within_objective": 0})["within_objective"]
        others = sum(each["count"] for status, each in answers.items() if status not in ("200", "429"))
        figures = {
            "capacity": capacity,
            "good_per_capacity": good / self.seconds / capacity,
            "refused": refused["count"],
            "refused_p99_ms": refused["p99_ms"],
            "other_errors": others,
            "memory_growth": growth(memory.gateway_bytes),
            "family_memory_growth": growth(memory.family_bytes),
            "speed_after": after / capacity,
        }
        put("overload", {**figures, "outcome": outcome})


class Memory:
    """Samples what the gateway and its family hold, while it is entered."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.gateway_bytes: list[int] = []
        self.family_bytes: list[int] = []

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            sizes = [each.memory_info().rss for each in family_of(self._process) if each.is_running()]
            self.gateway_bytes.append(sizes[0])
            self.family_bytes.append(sum(sizes))

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
