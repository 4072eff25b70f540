"""A system under the closed loop."""

from collections.abc import Sequence

from benchmarks.load.closed_loop import closed_loop, settle
from benchmarks.systems.peers import systems
from benchmarks.tasks.task import Put, Task
from benchmarks.workloads.workload import Workload

WARM_UP_CLIENTS = 64


def serving(
    system: str,
    workload: Workload,
    clients: Sequence[int],
    seconds: float,
    warm_up_seconds: float,
    direct_clients: Sequence[int] = (),
) -> Task:
    """Return the row: numbers of clients, and of clients that call the TorchServe behind the gateway directly."""

    def run(wanted: Sequence[str], put: Put) -> None:
        with systems()[system](workload) as running:
            closed_loop(running.endpoint, WARM_UP_CLIENTS, warm_up_seconds)
            for cell in wanted:
                settle(running.endpoint)
                endpoint, num_clients = running.endpoint, int(cell.removeprefix("direct-"))
                if cell.startswith("direct-"):
                    assert running.direct is not None
                    endpoint = running.direct
                    closed_loop(endpoint, num_clients, 1)
                put(cell, closed_loop(endpoint, num_clients, seconds))

    return Task(f"{system}/{workload.name}", [*map(str, clients), *(f"direct-{each}" for each in direct_clients)], run)
