"""How much each kind of run measures. Times are seconds."""

from dataclasses import dataclass

ALL = ("stock", "stock-one-thread", "batching", "grpc", "rest", "workers", "litserve", "mosec")


@dataclass(frozen=True)
class Mode:
    """How much of the matrix is measured, how often and for how long."""

    name: str
    repeats: int
    seconds: float  # of each cell
    big_seconds: float  # of each cell with the big model
    warm_up_seconds: float
    raw_seconds: float
    systems: tuple[str, ...]  # with the small model and plain images
    jpeg_systems: tuple[str, ...]  # with the small model and what clients send
    big_systems: tuple[str, ...]
    clients: tuple[int, ...]
    jpeg_clients: tuple[int, ...]
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
        systems=("stock", "stock-one-thread", "batching", "grpc", "workers", "litserve", "mosec"),
        jpeg_systems=("grpc", "workers", "litserve", "mosec"),
        big_systems=(),
        clients=(1, 8, 64),
        jpeg_clients=(8, 64),
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
    # What the targets need, and nothing else.
    "default": Mode(
        name="default",
        repeats=5,
        seconds=5,
        # What is under way when wrk ends does not count: half a batch of each worker, 0.15 s, which is 3 % of 5 s.
        big_seconds=15,
        warm_up_seconds=3,
        raw_seconds=0.8,
        systems=("stock-one-thread", "batching", "grpc", "rest", "workers", "litserve", "mosec"),
        jpeg_systems=("stock", "stock-one-thread", "batching", "grpc", "rest", "workers", "litserve", "mosec"),
        big_systems=("batching", "grpc", "workers", "litserve", "mosec"),
        clients=(8, 64),
        jpeg_clients=(1, 8, 64, 128),
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
        systems=ALL,
        jpeg_systems=ALL,
        big_systems=ALL,
        clients=(1, 8, 64, 128),
        jpeg_clients=(1, 8, 64, 128),
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
