"""What the three kinds of run measure. Times are seconds."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.edge import Edge
from benchmarks.measuring import Measuring
from benchmarks.overload import Overload
from benchmarks.poison import Poison
from benchmarks.tasks import Raw, Serving, Task
from benchmarks.workloads import Workload

OURS = ("workers", "grpc", "rest")
PEERS = ("stock", "batching", "litserve", "mosec")
MEASURED_CLIENTS = (8, 64)  # with metrics and without


@dataclass(frozen=True)
class Mode:
    """How much of the matrix is measured, how often and for how long."""

    name: str
    repeats: int
    seconds: float  # of each cell
    big_seconds: float  # of each cell with the big model
    warm_up_seconds: float
    raw_seconds: float
    systems: tuple[str, ...]  # with the small model
    big_systems: tuple[str, ...]
    clients: tuple[int, ...]
    big_clients: tuple[int, ...]
    rates: tuple[int, ...]
    edge_clients: tuple[int, ...]
    edge_seconds: float
    overload_seconds: float
    fault_systems: tuple[str, ...]  # under overload, and poisoned
    poison_rounds: int
    metrics_pairs: int
    seeds: bool


MODES = {
    # Does it all work? No figure of it means anything.
    "quick": Mode(
        name="quick",
        repeats=1,
        seconds=1,
        big_seconds=1,
        warm_up_seconds=1,
        raw_seconds=0.2,
        systems=("stock", "batching", "grpc", "workers", "litserve", "mosec"),
        big_systems=(),
        clients=(1, 8, 64),
        big_clients=(64,),
        rates=(),
        edge_clients=(1, 64),
        edge_seconds=1,
        overload_seconds=4,
        fault_systems=("workers",),
        poison_rounds=8,
        metrics_pairs=1,
        seeds=False,
    ),
    # What the targets need, and nothing else: under 55 minutes with training and all.
    "default": Mode(
        name="default",
        repeats=5,
        seconds=5,
        # What is under way when wrk ends does not count: half a batch of each worker, 0.15 s, which is 3 % of 5 s.
        big_seconds=15,
        warm_up_seconds=3,
        raw_seconds=0.8,
        systems=("stock", "batching", "grpc", "rest", "workers", "litserve", "mosec"),
        big_systems=("workers",),
        clients=(1, 8, 64, 128),
        big_clients=(64,),
        rates=(),
        edge_clients=(1, 8, 64, 256, 512),
        edge_seconds=3,
        overload_seconds=60,
        fault_systems=("workers",),
        poison_rounds=30,
        metrics_pairs=8,
        seeds=True,
    ),
    "full": Mode(
        name="full",
        repeats=5,
        seconds=8,
        big_seconds=15,
        warm_up_seconds=4,
        raw_seconds=1.5,
        systems=("stock", "batching", "grpc", "rest", "workers", "litserve", "mosec"),
        big_systems=("stock", "batching", "grpc", "rest", "workers", "litserve", "mosec"),
        clients=(1, 8, 64, 128),
        big_clients=(1, 8, 64, 128),
        rates=(10, 25, 50, 75, 90, 100, 125, 150, 200),
        edge_clients=(1, 2, 8, 32, 64, 128, 256, 512),
        edge_seconds=5,
        overload_seconds=60,
        fault_systems=("workers", "grpc"),
        poison_rounds=60,
        metrics_pairs=30,
        seeds=True,
    ),
}


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
        for system in mode.systems:
            direct = (1,) if system == "grpc" else ()
            found.append(serving(system, small, mode.clients, mode.rates, direct))
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
