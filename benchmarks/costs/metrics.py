"""What does it cost to measure? The gateway with its metrics and without them, in turns."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from benchmarks.costs import unmeasured
from benchmarks.load.closed_loop import closed_loop
from benchmarks.load.endpoint import settle
from benchmarks.systems.gateway import gateway
from benchmarks.systems.running import Running
from benchmarks.tasks.task import Put
from benchmarks.workloads.workload import Workload

COUNTER = "torchgate_inference_requests_total{"


@dataclass(frozen=True)
class Measuring:
    """Pairs of runs over the workers, at several numbers of clients.

    Throughput wanders by a tenth from second to second: many short pairs tell more than a few long ones.
    """

    workload: Workload
    clients: tuple[int, ...]
    num_pairs: int
    seconds: float = 1.0

    @property
    def key(self) -> str:
        """Return its key."""
        return f"metrics/{self.workload.name}"

    @property
    def cells(self) -> Sequence[str]:
        """Return the numbers of clients."""
        return [str(clients) for clients in self.clients]

    def run(self, wanted: Sequence[str], put: Put) -> None:
        """Measure the throughput with metrics over that without."""
        with gateway("workers", program="benchmarks.costs.unmeasured")(self.workload) as running:
            closed_loop(running.endpoint, max(self.clients), self.seconds)
            for cell in wanted:
                speeds: dict[signal.Signals, list[float]] = {unmeasured.ON: [], unmeasured.OFF: []}
                for pair in range(self.num_pairs):
                    for switch in sorted(speeds, reverse=bool(pair % 2)):
                        speeds[switch].append(self._speed(running, switch, int(cell)))
                ratio = sum(speeds[unmeasured.ON]) / sum(speeds[unmeasured.OFF])
                put(cell, {"ratio": ratio, **{switch.name: each for switch, each in speeds.items()}})

    def _speed(self, running: Running, switch: signal.Signals, clients: int) -> float:
        """Return the throughput with the metrics so. Raises RuntimeError where they were not."""
        running.process.send_signal(switch)
        settle(running.endpoint)
        before = _num_requests(running)
        outcome = closed_loop(running.endpoint, clients, self.seconds)
        were_counted = _num_requests(running) - before >= outcome["requests"]
        if were_counted != (switch == unmeasured.ON):
            raise RuntimeError(f"the gateway does not obey {switch.name}")
        return float(outcome["throughput"])


def _num_requests(running: Running) -> float:
    """Return how many predictions the gateway has counted."""
    page = httpx.get(f"http://127.0.0.1:{running.endpoint.port}/metrics").raise_for_status().text
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(COUNTER))
