"""A system under the two generators."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load.closed_loop import closed_loop
from benchmarks.load.endpoint import settle
from benchmarks.load.open_loop import open_loop
from benchmarks.systems.peers import systems
from benchmarks.tasks.task import Put
from benchmarks.workloads.workload import Workload

# Capacity is what a system does in a closed loop of so many clients.
CAPACITY_CLIENTS = 64
WARM_UP_CLIENTS = 64


@dataclass(frozen=True)
class Serving:
    """A system under the two generators: cells are numbers of clients, or rates as percentages of its capacity."""

    system: str
    workload: Workload
    clients: tuple[int, ...]
    seconds: float
    warm_up_seconds: float
    rates: tuple[int, ...] = ()  # percent
    direct_clients: tuple[int, ...] = ()  # past the gateway
    objective_ms: float = 250.0

    @property
    def key(self) -> str:
        """Return system/workload."""
        return f"{self.system}/{self.workload.name}"

    @property
    def cells(self) -> Sequence[str]:
        """Return clients, clients past the gateway, rates."""
        direct = [f"direct-{clients}" for clients in self.direct_clients]
        return [*map(str, self.clients), *direct, *(f"rate-{rate:03d}" for rate in self.rates)]

    def run(self, wanted: Sequence[str], put: Put) -> None:
        """Start the system, warm it up, measure."""
        with systems()[self.system](self.workload) as running:
            closed_loop(running.endpoint, WARM_UP_CLIENTS, self.warm_up_seconds)
            capacity = None
            for cell in wanted:
                kind, _, number = cell.rpartition("-")
                if kind == "rate":
                    if capacity is None:
                        capacity = closed_loop(running.endpoint, CAPACITY_CLIENTS, self.seconds)["throughput"]
                    rate = capacity * int(number) / 100
                    put(cell, open_loop(running.endpoint, rate, self.seconds, self.objective_ms))
                    continue
                settle(running.endpoint)
                endpoint = running.endpoint
                if kind == "direct":
                    assert running.direct is not None
                    endpoint = running.direct
                    closed_loop(endpoint, int(number), 1)
                outcome = closed_loop(endpoint, int(number), self.seconds)
                if int(number) == CAPACITY_CLIENTS and kind != "direct":
                    capacity = outcome["throughput"]
                put(cell, {**outcome, "settings": dict(running.settings)})
