"""One item that brings its batch down, among others that arrived with it: what that costs its neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load.closed_loop import closed_loop
from benchmarks.load.open_loop import scheduled
from benchmarks.systems.gateway import gateway
from benchmarks.tasks.task import Put
from benchmarks.workloads.repack import poisoned_store
from benchmarks.workloads.workload import Workload

# As in peers/poisoned_handler.py, which travels inside an archive and can import nothing from here.
MARK = b"poison"
BURST = 32  # requests that arrive at once: a batch with its neighbours
PAUSE_SECONDS = 0.4
OBJECTIVE_MS = 10_000


@dataclass(frozen=True)
class Poison:
    """Bursts in turn without and with a poisoned item."""

    system: str
    workload: Workload
    num_rounds: int

    @property
    def key(self) -> str:
        """Return its key."""
        return f"poison-{self.system}/{self.workload.name}"

    @property
    def cells(self) -> Sequence[str]:
        """Return the one that there is."""
        return ["poison"]

    def run(self, wanted: Sequence[str], put: Put) -> None:
        """Measure it."""
        poisoned = self.workload.folder / "poisoned.png"
        # What follows the end of a PNG is ignored by decoders.
        poisoned.write_bytes(self.workload.bodies()[0].read_bytes() + MARK)
        with gateway(self.system, store=poisoned_store(self.workload))(self.workload) as running:
            closed_loop(running.endpoint, BURST, 2)
            bodies: list[Path] = [*running.endpoint.bodies, poisoned]
            times, which = bursts(self.num_rounds, len(bodies))
            endpoint = replace(running.endpoint, bodies=bodies)
            outcome = scheduled(endpoint, times, which, OBJECTIVE_MS, keep_records=True)
        put("poison", judge(outcome["records"], len(bodies) - 1))


def bursts(num_rounds: int, num_bodies: int) -> tuple[list[float], list[int]]:
    """Return when each request leaves and which body it has; in odd rounds one, in its middle, is the last body."""
    times, which = [], []
    for number in range(num_rounds):
        for place in range(BURST):
            times.append((number + 1) * PAUSE_SECONDS)
            is_poisoned = number % 2 == 1 and place == BURST // 2
            which.append(num_bodies - 1 if is_poisoned else place % (num_bodies - 1))
    return times, which


def judge(records: Sequence[tuple[int, int, float]], poisoned: int) -> dict[str, Any]:
    """Return the neighbours' errors and their worst latency in a burst, as medians, without and with the poison."""
    worst: dict[bool, list[float]] = {False: [], True: []}
    num_errors, statuses = 0, []
    for start in range(0, len(records), BURST):
        burst = records[start : start + BURST]
        neighbours = [record for record in burst if record[0] != poisoned]
        num_errors += sum(status != 200 for _, status, _ in neighbours)
        statuses += [status for body, status, _ in burst if body == poisoned]
        worst[len(neighbours) < len(burst)].append(max(seconds for _, _, seconds in neighbours))
    clean_ms, poisoned_ms = (median(worst[key]) * 1e3 for key in (False, True))
    return {
        "clean_ms": clean_ms,
        "poisoned_ms": poisoned_ms,
        "ratio": poisoned_ms / clean_ms,
        "neighbour_errors": num_errors,
        "poisoned_statuses": statuses,
    }
