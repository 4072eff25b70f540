"""A system under the two generators."""

from collections.abc import Sequence

from benchmarks.load.closed_loop import closed_loop, settle
from benchmarks.load.open_loop import open_loop
from benchmarks.systems.peers import systems
from benchmarks.tasks.task import Put, Task
from benchmarks.workloads.workload import Workload

# Capacity is what a system does in a closed loop of so many clients.
CAPACITY_CLIENTS = 64
WARM_UP_CLIENTS = 64
OBJECTIVE_MS = 250


def serving(
    system: str,
    workload: Workload,
    clients: Sequence[int],
    seconds: float,
    warm_up_seconds: float,
    rates: Sequence[int] = (),
    direct_clients: Sequence[int] = (),
) -> Task:
    """Return the row: numbers of clients, of clients past the gateway, and rates in percent of the capacity."""

    def run(wanted: Sequence[str], put: Put) -> None:
        with systems()[system](workload) as running:
            closed_loop(running.endpoint, WARM_UP_CLIENTS, warm_up_seconds)
            capacity = None
            for cell in wanted:
                kind, _, number = cell.rpartition("-")
                if kind == "rate":
                    if capacity is None:
                        capacity = closed_loop(running.endpoint, CAPACITY_CLIENTS, seconds)["throughput"]
                    put(cell, open_loop(running.endpoint, capacity * int(number) / 100, seconds, OBJECTIVE_MS))
                    continue
                settle(running.endpoint)
                endpoint = running.endpoint
                if kind == "direct":
                    assert running.direct is not None
                    endpoint = running.direct
                    closed_loop(endpoint, int(number), 1)
                outcome = closed_loop(endpoint, int(number), seconds)
                if int(number) == CAPACITY_CLIENTS and kind != "direct":
                    capacity = outcome["throughput"]
                put(cell, {**outcome, "settings": dict(running.settings)})

    cells = [
        *map(str, clients),
        *(f"direct-{each}" for each in direct_clients),
        *(f"rate-{rate:03d}" for rate in rates),
    ]
    return Task(f"{system}/{workload.name}", cells, run)
