"""The targets, each a sentence that a user would care about, with its figure from one run.

Unless a target says otherwise, its figures are medians over the repeats, on both sides. Earlier targets that
measurements refuted are in docs/decisions/fair-benchmarks.md.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.suite.results import Results

PEERS = ("stock-one-thread", "batching", "litserve", "mosec")
MAIN = "small-jpeg"
# Against the best peer: (clients, least throughput ratio, largest p99 ratio); a tenth is conceded from 64 clients on.
RACES = (("1", 1.0, 1.0), ("8", 1.0, 1.0), ("64", 0.9, 1.1), ("128", 0.9, 1.1))


@dataclass(frozen=True)
class Line:
    """One target: its figure, None if it was not measured, and its bound."""

    number: int
    what: str
    figure: float | None
    sense: str  # ">=" or "<="
    bound: float
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Tell whether it was measured and reaches its bound."""
        figure, bound = self.figure, self.bound
        return figure is not None and (figure >= bound if self.sense == ">=" else figure <= bound)


def lines(results: Results, accuracy: dict[str, Any] | None) -> list[Line]:
    """Return every target that a measurement proves; tests prove the others."""
    return [*_against_peers(results), *_against_limits(results), *_alone(results), *_overloaded(results, accuracy)]


def _against_peers(results: Results) -> Iterator[Line]:
    for clients, least, largest in RACES:
        many = f"With {clients} client{'s' if clients != '1' else ''}"
        peer, ratio = _best_peer(results, MAIN, clients, "throughput", max)
        yield Line(1, f"{many}, `workers` answers as much as the best peer ({peer})", ratio, ">=", least)
        peer, ratio = _best_peer(results, MAIN, clients, "p99_ms", min)
        yield Line(1, f"{many}, its p99 is no longer than the shortest peer's ({peer})", ratio, "<=", largest)
    peer, ratio = _best_peer(results, "big", "64", "throughput", max)
    yield Line(1, f"With a ResNet-18 at 224, it answers as much as the best peer ({peer})", ratio, ">=", 0.97)
    through, below = (_median(results, f"{system}/{MAIN}", "64") for system in ("grpc", "batching"))
    what = "With 64 clients, the gateway before TorchServe answers as much as TorchServe's own batching"
    yield Line(1, what, _ratio(through, below), ">=", 0.9)


def _against_limits(results: Results) -> Iterator[Line]:
    for workload, name, least in ((MAIN, "small model", 0.7), ("big", "ResNet-18 at 224", 0.93)):
        raw = results.limit(workload, "decode")
        speed = _median(results, f"workers/{workload}", "64")
        what = f"{name}: `workers` answers most of what the cores could if serving cost nothing"
        yield Line(2, what, _ratio(speed, None if raw is None else raw[1].median), ">=", least)


def _alone(results: Results) -> Iterator[Line]:
    p50, p99 = (_median(results, f"workers/{MAIN}", "1", figure) for figure in ("p50_ms", "p99_ms"))
    direct = _median(results, f"grpc/{MAIN}", "direct-1", "p50_ms")
    through = [_median(results, f"{system}/{MAIN}", "1", "p50_ms") for system in ("grpc", "rest")]
    known = [each for each in through if each is not None]
    added = min(known) - direct if known and direct is not None else None
    yield Line(
        3, "A lone client waits less for `workers` than for TorchServe called directly", _ratio(p50, direct), "<=", 0.8
    )
    yield Line(3, "A lone client's p99 is at most twice its p50", _ratio(p99, p50), "<=", 2)
    yield Line(3, "The gateway adds little to what TorchServe takes for a lone client", added, "<=", 1.5, " ms")
    cells = sorted(int(cell) for task, cell in results.cells() if task == f"edge-gateway/{MAIN}")
    speeds = [
        ratio
        for cell in map(str, cells)
        if (ratio := _ratio(*(_median(results, f"edge-{kind}/{MAIN}", cell) for kind in ("gateway", "bare"))))
    ]
    costs = [_median(results, f"edge-gateway/{MAIN}", str(cell), "cpu_us_per_request") or 0.0 for cell in cells]
    what = "The gateway alone on one core answers half of what a bare ASGI application does, with any number of clients"
    yield Line(4, what, min(speeds, default=None), ">=", 0.5)
    what = "A request costs no more CPU time with many clients than with one"
    yield Line(4, what, max(costs) / costs[0] if costs and costs[0] else None, "<=", 1.25)


def _overloaded(results: Results, accuracy: dict[str, Any] | None) -> Iterator[Line]:
    quantized, plain = (_median(results, f"workers/{each}", "64") for each in ("small-int8", "small"))
    yield Line(5, "int8-static answers more than fp32, 64 clients", _ratio(quantized, plain), ">=", 1.5)
    drop = None if accuracy is None else abs(accuracy["mean"])
    yield Line(5, "int8-static is as accurate as fp32, mean of 3 seeds", drop, "<=", 0.5, " points")

    task = f"overload-workers/{MAIN}"
    for what, figure, sense, bound, unit in (
        ("At twice the capacity, nearly all of the capacity is answered in time", "good_per_capacity", ">=", 0.9, ""),
        ("Then what cannot be answered is refused at once (p99)", "refused_p99_ms", "<=", 50, " ms"),
        ("Then the gateway's memory does not grow", "memory_growth", "<=", 1.05, ""),
        ("2 s later it is as fast as before", "speed_after", ">=", 0.95, ""),
    ):
        yield Line(6, what, _median(results, task, "overload", figure), sense, bound, unit)
    outcomes = results.outcomes(task, "overload")
    share = max((each["other_errors"] / each["outcome"]["sent"] for each in outcomes), default=None)
    yield Line(6, "Then at most one request of 10,000 ends in any other way, worst repeat", share, "<=", 1e-4)


def _median(results: Results, task: str, cell: str, figure: str = "throughput") -> float | None:
    found = results.series(task, cell, figure)
    return None if found is None else found.median


def _ratio(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else over / under


def _best_peer(
    results: Results, workload: str, clients: str, figure: str, best: Callable[..., str]
) -> tuple[str, float | None]:
    """Return the peer whose median is best, and our median over it."""
    theirs = {peer: value for peer in PEERS if (value := _median(results, f"{peer}/{workload}", clients, figure))}
    if not theirs:
        return "none", None
    name = best(theirs, key=lambda peer: theirs[peer])
    return name, _ratio(_median(results, f"workers/{workload}", clients, figure), theirs[name])
