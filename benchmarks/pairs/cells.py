"""What a pair compares: backends, workloads, numbers of clients; and how far this checkout may fall behind."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.suite.runner import matches
from benchmarks.workloads.workload import Name

BACKENDS = ("workers", "grpc")
CLIENTS: dict[Name, tuple[int, ...]] = {"small-jpeg": (1, 8, 64), "big": (8,)}
FIGURES = ("throughput", "p50_ms", "p99_ms")
LEAST_THROUGHPUT: dict[Name, float] = {"small-jpeg": 0.95, "big": 0.99}
LARGEST_P99: dict[Name, float] = {"small-jpeg": 1.10}


@dataclass(frozen=True)
class Cell:
    """One comparison."""

    backend: str
    workload: Name
    clients: int

    @property
    def key(self) -> str:
        """Return backend/workload/clients."""
        return f"{self.backend}/{self.workload}/{self.clients}"


Pair = dict[str, Any]
"""The figures of one pair: `this` and `other`, each with throughput, p50_ms, p99_ms, errors; and their ratios."""


def cells(only: str) -> list[Cell]:
    """Return the cells that `only` names, such as grpc, or */big, or workers/small-jpeg/64; "" names all."""
    found = [Cell(backend, name, clients) for backend in BACKENDS for name in CLIENTS for clients in CLIENTS[name]]
    return [cell for cell in found if matches(cell.key, only)]


def pair_of(this: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> Pair:
    """Return one pair from the turns of both sides: each side's figures are the means of its turns."""
    sides: dict[str, dict[str, float]] = {}
    for side, turns in (("this", this), ("other", other)):
        figures = {name: sum(turn[name] for turn in turns) / len(turns) for name in FIGURES}
        sides[side] = {**figures, "errors": sum(turn["num_errors"] for turn in turns)}
    ratios = {name: sides["this"][name] / sides["other"][name] for name in FIGURES}
    return {**sides, "ratios": ratios}


def is_met(cell: Cell, pairs: Sequence[Pair]) -> bool:
    """Tell whether the medians of the pairs' ratios keep the cell's bounds, without an error on this side."""
    least, largest = LEAST_THROUGHPUT[cell.workload], LARGEST_P99.get(cell.workload)
    throughput, p99 = (median(pair["ratios"][name] for pair in pairs) for name in ("throughput", "p99_ms"))
    return throughput >= least and (largest is None or p99 <= largest) and not any(p["this"]["errors"] for p in pairs)


def table(found: dict[Cell, list[Pair]]) -> str:
    """Return a row for each cell: this over the other, as medians of the pairs with the least and the largest."""
    lines = [
        "| cell | pairs | requests/s, this | other | throughput ratio | bound | p99 in ms, this | other | p99 ratio "
        "| bound | errors | |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell, pairs in found.items():
        if not pairs:
            lines.append(f"| {cell.key} | 0 | | | | | | | | | | not measured |")
            continue
        columns = [cell.key, str(len(pairs))]
        bounds = {
            "throughput": f">= {LEAST_THROUGHPUT[cell.workload]:.2f}",
            "p99_ms": f"<= {LARGEST_P99[cell.workload]:.2f}" if cell.workload in LARGEST_P99 else "",
        }
        for name, bound in bounds.items():
            columns += [f"{median(pair[side][name] for pair in pairs):.4g}" for side in ("this", "other")]
            ratios = [pair["ratios"][name] for pair in pairs]
            columns += [f"{median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})", bound]
        errors = [str(round(sum(pair[side]["errors"] for pair in pairs))) for side in ("this", "other")]
        columns += [", ".join(errors), "ok" if is_met(cell, pairs) else "FALLS SHORT"]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines)
