"""How much each kind of run measures. Times are seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from benchmarks.workloads.workload import Name

ALL = ("stock", "stock-one-thread", "batching", "grpc", "rest", "workers", "litserve", "mosec")
BEST = ("batching", "grpc", "workers", "litserve", "mosec")


class Rows(NamedTuple):
    """Which systems serve a workload, to how many clients."""

    systems: tuple[str, ...]
    clients: tuple[int, ...]


@dataclass(frozen=True)
class Mode:
    """Which rows are measured, how often and for how long."""

    name: str
    repeats: int
    seconds: float  # of each cell
    big_seconds: float  # of each cell with the big model
    warm_up_seconds: float
    raw_seconds: float
    rows: Mapping[Name, Rows]
    edge_clients: tuple[int, ...]
    edge_seconds: float
    overload_seconds: float
    overloaded: tuple[str, ...]
    seeds: bool


# What the targets need, and nothing else.
DEFAULT = Mode(
    name="default",
    repeats=5,
    seconds=5,
    # wrk does not count the requests that run when it ends: half a batch of each worker, 0.15 s, which is 3 % of 5 s.
    big_seconds=15,
    warm_up_seconds=3,
    raw_seconds=0.8,
    rows={
        "small": Rows(BEST, (8, 64)),
        "small-jpeg": Rows(ALL, (1, 8, 64, 128)),
        "small-int8": Rows(("workers",), (64,)),
        "big": Rows(BEST, (64,)),
    },
    edge_clients=(1, 8, 64, 256, 512),
    edge_seconds=3,
    overload_seconds=60,
    overloaded=("workers",),
    seeds=True,
)
# Does it all work? No figure of it means anything.
QUICK = replace(
    DEFAULT, name="quick", repeats=1, seconds=1, warm_up_seconds=1, raw_seconds=0.2,
    rows={"small": Rows(BEST, (64,)), "small-jpeg": Rows(ALL, (1, 8, 64)), "small-int8": Rows(("workers",), (64,))},
    edge_clients=(1, 64), edge_seconds=1, overload_seconds=4, seeds=False,
)  # fmt: skip
FULL = replace(
    DEFAULT, name="full", seconds=8, warm_up_seconds=4, raw_seconds=1.5,
    rows={
        "small": Rows(ALL, (1, 8, 64, 128)),
        "small-jpeg": Rows(ALL, (1, 8, 64, 128)),
        "small-int8": Rows(("workers",), (64,)),
        "big": Rows(ALL, (1, 8, 64, 128)),
    },
    edge_clients=(1, 2, 8, 32, 64, 128, 256, 512), edge_seconds=5, overloaded=("workers", "grpc"),
)  # fmt: skip
MODES = {mode.name: mode for mode in (QUICK, DEFAULT, FULL)}
