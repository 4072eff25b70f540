"""What is measured in one go: a system is started, its cells are measured, it is stopped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.load import closed_loop, open_loop, settle
from benchmarks.raw import BATCH_SIZES, limits
from benchmarks.systems import SYSTEMS
from benchmarks.workloads import Workload

Put = Callable[[str, dict[str, Any]], None]

# Capacity is what a system does in a closed loop of so many clients.
CAPACITY_CLIENTS = 64
WARM_UP_CLIENTS = 64


class Task(Protocol):
    """One row of the table."""

    @property
    def key(self) -> str:
        """Return system/workload."""

    @property
    def cells(self) -> Sequence[str]:
        """Return the names of its cells."""

    def run(self, wanted: Sequence[str], put: Put) -> None:
        """Measure the cells that are wanted and hand each over."""


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
        with SYSTEMS[self.system](self.workload) as running:
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


@dataclass(frozen=True)
class Raw:
    """Forward passes with nothing around them."""

    workload: Workload
    seconds: float

    @property
    def key(self) -> str:
        """Return raw/workload."""
        return f"raw/{self.workload.name}"

    @property
    def cells(self) -> Sequence[str]:
        """Return the one that there is."""
        return ["limits"]

    def run(self, wanted: Sequence[str], put: Put) -> None:
        """Measure it."""
        put("limits", limits(self.workload.folder, BATCH_SIZES[self.workload.name], self.seconds))
