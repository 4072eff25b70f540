"""The rows of each kind of run."""

from collections.abc import Sequence

from benchmarks.costs.edge import Edge
from benchmarks.costs.metrics import Measuring
from benchmarks.suite.modes import Mode
from benchmarks.tasks.overload import Overload
from benchmarks.tasks.poison import Poison
from benchmarks.tasks.raw import Raw
from benchmarks.tasks.serving import Serving
from benchmarks.tasks.task import Task
from benchmarks.workloads.workload import Workload

MEASURED_CLIENTS = (8, 64)  # with metrics and without


def tasks(mode: Mode, workloads: dict[str, Workload]) -> Sequence[Task]:
    """Return everything that the mode measures, as far as its workload could be built."""
    found: list[Task] = []

    def serving(
        system: str,
        workload: Workload,
        clients: tuple[int, ...],
        rates: tuple[int, ...] = (),
        direct: tuple[int, ...] = (),
    ) -> Serving:
        seconds = mode.big_seconds if workload.name == "big" else mode.seconds
        return Serving(system, workload, clients, seconds, mode.warm_up_seconds, rates, direct)

    if small := workloads.get("small"):
        found.append(Raw(small, mode.raw_seconds))
        found += [serving(system, small, mode.clients) for system in mode.systems]
    if jpeg := workloads.get("small-jpeg"):
        found.append(Raw(jpeg, mode.raw_seconds))
        for system in mode.jpeg_systems:
            direct = (1,) if system == "grpc" else ()
            found.append(serving(system, jpeg, mode.jpeg_clients, mode.rates, direct))
    if int8 := workloads.get("small-int8"):
        found.append(serving("workers", int8, (64,)))
    if (big := workloads.get("big")) and mode.big_systems:
        found.append(Raw(big, mode.raw_seconds * 2))
        found += [serving(system, big, mode.big_clients) for system in mode.big_systems]
    if small:
        found += [Edge(kind, small, mode.edge_clients, mode.edge_seconds) for kind in ("bare", "gateway")]
        for system in mode.fault_systems:
            found.append(Overload(system, small, mode.overload_seconds, mode.seconds))
            found.append(Poison(system, small, mode.poison_rounds))
        found.append(Measuring(small, MEASURED_CLIENTS, mode.metrics_pairs))
    return found
