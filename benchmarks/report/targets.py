"""The targets of the table, each with its figure from one run, and whether it is met."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.suite.plan import MEASURED_CLIENTS
from benchmarks.suite.results import Results, Series

PEERS = ("stock-one-thread", "batching", "litserve", "mosec")
BUSY = ("64", "128")
CALM = ("1", "8")


@dataclass(frozen=True)
class Line:
    """One demand: its figure, its bound and the sense in which it is meant; `figure` None is not measured."""

    number: int
    what: str
    figure: float | None
    sense: str  # ">=" or "<="
    bound: float
    aim: float | None = None
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Tell whether it was measured and reaches its bound."""
        if self.figure is None:
            return False
        return self.figure >= self.bound if self.sense == ">=" else self.figure <= self.bound


class Figures:
    """Ratios between cells; each is None where one of the two was not measured."""

    def __init__(self, results: Results, workload: str = "small") -> None:
        self.results = results
        self.workload = workload

    def series(self, system: str, cell: str, figure: str = "throughput", workload: str | None = None) -> Series | None:
        """Return one figure of a cell over the repeats."""
        return self.results.series(f"{system}/{workload or self.workload}", cell, figure)

    def median(self, system: str, cell: str, figure: str = "throughput", workload: str | None = None) -> float | None:
        """Return its median."""
        found = self.series(system, cell, figure, workload)
        return None if found is None else found.median

    def limit(self, what: str, workload: str | None = None) -> float | None:
        """Return the median of raw forward passes, `what` being without or with decoding, in their best shape."""
        found = self.results.limit(workload or self.workload, what)
        return None if found is None else found[1].median

    def ours(self, cell: str, systems: Sequence[str] = ("workers", "grpc", "rest"), workload: str | None = None) -> str:
        """Return the better of the backends: the one with the highest throughput in this cell."""
        return max(systems, key=lambda system: self.median(system, cell, workload=workload) or 0.0)


def ratio(over: float | None, under: float | None) -> float | None:
    """Return over / under, None if there is none."""
    return None if over is None or not under else over / under


def lines(results: Results, accuracy: dict[str, Any] | None) -> list[Line]:
    """Return every line; those that tests prove, not measurements, are not among them."""
    figures = Figures(results)
    found: list[Line] = []
    for each in (_busy, _calm, _big, _edge):
        found += each(figures)
    int8 = ratio(figures.median("workers", "64", workload="small-int8"), figures.median("workers", "64"))
    drop = None if accuracy is None else abs(accuracy["mean"])
    found.append(Line(5, "int8-static / fp32 throughput, workers, 64 clients", int8, ">=", 1.5))
    found.append(Line(5, "|accuracy int8-static - fp32|, mean of 3 seeds", drop, "<=", 0.5, unit=" points"))
    found += _faults(figures)
    return found


def _busy(figures: Figures) -> Iterator[Line]:
    raw = figures.limit("forward")
    for clients in BUSY:
        ours = figures.ours(clients)
        speed = figures.median(ours, clients)
        name = f"{clients} clients: {ours}"
        yield Line(1, f"{name} / raw forward passes", ratio(speed, raw), ">=", 0.70, aim=0.80)
        for peer, bound, aim in (
            ("mosec", 1.1, 1.25),
            ("litserve", 2, None),
            ("stock", 5, None),
            ("batching", 2, None),
        ):
            yield Line(1, f"{name} / {peer}", ratio(speed, figures.median(peer, clients)), ">=", bound, aim)
        yield _no_worse(figures, ours, clients)
        through = figures.median("grpc", clients)
        for peer, bound in (("mosec", 0.85), ("batching", 2)):
            peer_speed = figures.median(peer, clients)
            yield Line(
                1, f"{clients} clients: through TorchServe, grpc / {peer}", ratio(through, peer_speed), ">=", bound
            )


def _no_worse(figures: Figures, ours: str, clients: str) -> Line:
    """Our median p99 against the upper end of the spread of the peer whose median p99 is the lowest."""
    theirs = {peer: series for peer in PEERS if (series := figures.series(peer, clients, "p99_ms"))}
    figure, best = None, "best peer"
    if theirs:
        best = min(theirs, key=lambda peer: theirs[peer].median)
        figure = ratio(figures.median(ours, clients, "p99_ms"), theirs[best].high)
    return Line(1, f"{clients} clients: p99 of {ours} / upper end of the spread of {best}'s", figure, "<=", 1)


def _calm(figures: Figures) -> Iterator[Line]:
    for clients in CALM:
        ours = figures.ours(clients)
        for peer in PEERS:
            for figure, sense in (("throughput", ">="), ("p50_ms", "<="), ("p99_ms", "<=")):
                value = ratio(figures.median(ours, clients, figure), figures.median(peer, clients, figure))
                aim = 1.4 if (clients, peer, figure) == ("8", "mosec", "throughput") else None
                name = figure.removesuffix("_ms")
                yield Line(2, f"{_count(clients)}: {name} of {ours} / {peer}", value, sense, 1, aim)
    p50 = figures.median("workers", "1", "p50_ms")
    direct = figures.median("grpc", "direct-1", "p50_ms")
    yield Line(2, "1 client: p50 of workers / TorchServe called directly", ratio(p50, direct), "<=", 0.6)
    tail = ratio(figures.median("workers", "1", "p99_ms"), p50)
    yield Line(2, "1 client: p99 / p50 of workers", tail, "<=", 2)
    through = figures.ours("1", ("grpc", "rest"))
    p50_through = figures.median(through, "1", "p50_ms")
    added = None if p50_through is None or direct is None else p50_through - direct
    yield Line(2, f"1 client: p50 of {through} above TorchServe called directly", added, "<=", 1.5, unit=" ms")


def _count(clients: str) -> str:
    return "1 client" if clients == "1" else f"{clients} clients"


def _big(figures: Figures) -> Iterator[Line]:
    raw = figures.limit("decode", workload="big")
    ours = figures.ours("64", workload="big")
    speed = figures.median(ours, "64", workload="big")
    yield Line(3, f"ResNet-18 at 224: {ours} / raw, both decode", ratio(speed, raw), ">=", 0.93)


def _edge(figures: Figures) -> Iterator[Line]:
    cells = sorted((int(cell) for task, cell in figures.results.cells() if task == "edge-gateway/small"))
    speeds = [
        ratio(figures.median("edge-gateway", str(cell)), figures.median("edge-bare", str(cell))) for cell in cells
    ]
    measured = [speed for speed in speeds if speed is not None]
    worst = min(measured) if measured else None
    yield Line(4, "one core, instant backend: gateway / bare ASGI, worst number of clients", worst, ">=", 0.5)
    costs = [figures.median("edge-gateway", str(cell), "cpu_us_per_request") for cell in cells]
    known = [cost for cost in costs if cost is not None]
    flat = max(known) / known[0] if known else None
    yield Line(4, "CPU time of a request, dearest number of clients / 1 client", flat, "<=", 1.25)


def _faults(figures: Figures) -> Iterator[Line]:
    def over(figure: str) -> float | None:
        return figures.median("overload-workers", "overload", figure)

    def worst(system: str, cell: str, figure: str) -> float | None:
        found = figures.series(system, cell, figure)
        return None if found is None else found.high

    yield Line(
        6, "open loop at 2 x capacity: answered within the objective / capacity", over("good_per_capacity"), ">=", 0.9
    )
    yield Line(6, "refused with 429: p99", over("refused_p99_ms"), "<=", 50, unit=" ms")
    yield Line(6, "other errors, worst repeat", worst("overload-workers", "overload", "other_errors"), "<=", 0)
    yield Line(6, "memory of the gateway, last quarter / second quarter", over("memory_growth"), "<=", 1.05)
    yield Line(6, "throughput 2 s after the load / before", over("speed_after"), ">=", 0.95)
    errors = worst("poison-workers", "poison", "neighbour_errors")
    yield Line(7, "errors of a poisoned item's neighbours, worst repeat", errors, "<=", 0)
    slower = figures.median("poison-workers", "poison", "ratio")
    yield Line(7, "their latency / without poison", slower, "<=", 3)
    for clients in MEASURED_CLIENTS:
        with_metrics = figures.median("metrics", str(clients), "ratio")
        yield Line(8, f"{clients} clients: workers / the same without metrics", with_metrics, ">=", 0.97)


def all_met(found: Sequence[Line]) -> bool:
    """Tell whether nothing falls short."""
    return all(line.is_met for line in found)
