"""The measured cells: one JSON file for each cell and repeat, so that an interrupted run goes on where it was."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.environment.folders import ROOT
from benchmarks.environment.machine import allocator, kernels

# The sources that decide what is measured. The rest of the harness only shows it, or belongs to other verbs.
SOURCES = ("service", "handlers", "deploy", "benchmarks")
LEFT_OUT = {"out", "results", "report", "pairs", "training", "tune.py", "bench.py", "__main__.py", "results.py"}


class Series(NamedTuple):
    """One figure over the repeats: its median and its range."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g}-{self.high:.4g})"


@dataclass
class Results:
    """The cells of one run by task ("system/workload"), cell and repeat, and why others are missing."""

    folder: Path
    failures: dict[str, str] = field(default_factory=dict)

    def path(self, task: str, cell: str, repeat: int) -> Path:
        """Return the file of a cell; it exists if the cell was measured."""
        return self.folder / task / f"{cell}.{repeat}.json"

    def put(self, task: str, cell: str, repeat: int, outcome: dict[str, Any]) -> None:
        """Keep an outcome."""
        path = self.path(task, cell, repeat)
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_suffix(".new")
        hidden.write_text(json.dumps(outcome))
        hidden.replace(path)

    def outcomes(self, task: str, cell: str) -> list[dict[str, Any]]:
        """Return a cell's outcomes, one for each repeat that was measured."""
        paths = sorted((self.folder / task).glob(f"{cell}.*.json"))
        return [json.loads(path.read_text()) for path in paths]

    def series(self, task: str, cell: str, figure: str) -> Series | None:
        """Return one figure of a cell; None if it was not measured."""
        return series([outcome[figure] for outcome in self.outcomes(task, cell)])

    def limit(self, workload: str, what: str) -> tuple[str, Series] | None:
        """Return the shape of raw forward passes whose median over the repeats is largest, with its images/s.

        The fastest of each repeat would be whichever shape was luckiest in it: more than any shape reaches.
        """
        outcomes = [outcome[what] for outcome in self.outcomes(f"raw/{workload}", "limits")]
        shapes = outcomes[0] if outcomes else ()
        found = [(shape, images) for shape in shapes if (images := series([each[shape] for each in outcomes]))]
        return max(found, key=lambda each: each[1].median, default=None)

    def cells(self) -> list[tuple[str, str]]:
        """Return every (task, cell) that has an outcome."""
        paths = (path.relative_to(self.folder) for path in self.folder.glob("*/*/*.json"))
        return sorted({(path.parent.as_posix(), path.name.rsplit(".", 2)[0]) for path in paths})


def series(values: Sequence[float]) -> Series | None:
    """Return the median and the range of values; None of none."""
    return Series(median(values), min(values), max(values)) if values else None


def configuration(mode: str, archives: Iterable[Path]) -> str:
    """Return a short name that changes with everything that decides what is measured."""
    digest = hashlib.sha256(f"{mode} {allocator()} {kernels()}".encode())
    files = [path for room in SOURCES for path in sorted((ROOT / room).rglob("*")) if path.is_file()]
    for path in [ROOT / "constraints.txt", *files, *archives]:
        place = path.relative_to(ROOT).parts
        measured = place[0] != "benchmarks" or not {place[1], place[-1]} & LEFT_OUT
        if "__pycache__" not in place and (measured or path in archives):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return f"{mode}-{digest.hexdigest()[:10]}"
