"""What was measured: one JSON file for each cell of the table and repeat, so that a run can be taken up again."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environment.folders import ROOT
from benchmarks.environment.machine import allocator, kernels

# What decides what is measured. The rest of the harness only shows it, or belongs to other verbs.
SOURCES = ("service", "handlers", "deploy", "benchmarks")
LEFT_OUT = {"out", "results", "report", "pairs", "training"}
LEFT_OUT |= {"tune.py", "bench.py", "__main__.py", "results.py", "peer_settings.py"}


@dataclass
class Series:
    """One figure over the repeats, with its median and its range."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        self.median = median(self.values)
        self.low, self.high = min(self.values), max(self.values)

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g}-{self.high:.4g})"


@dataclass
class Results:
    """The cells of one run by (system, workload, cell, repeat), and why others are missing."""

    folder: Path
    failures: dict[str, str] = field(default_factory=dict)

    def path(self, task: str, cell: str, repeat: int) -> Path:
        """Return where a cell is kept; `task` is system/workload."""
        return self.folder / task / f"{cell}.{repeat}.json"

    def has(self, task: str, cell: str, repeat: int) -> bool:
        """Tell whether it was measured."""
        return self.path(task, cell, repeat).exists()

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
        """Return one figure of a cell, dots leading into it; None if there is none."""
        values = []
        for outcome in self.outcomes(task, cell):
            value: Any = outcome
            for step in figure.split("."):
                value = value[step]
            values.append(float(value))
        return Series(tuple(values)) if values else None

    def limit(self, workload: str, what: str) -> tuple[str, Series] | None:
        """Return the shape of raw forward passes whose median over the repeats is largest, with its images/s.

        The fastest of each repeat would be whichever shape was luckiest in it: more than any shape reaches.
        """
        task, cell = f"raw/{workload}", "limits"
        shapes = [shape for outcome in self.outcomes(task, cell)[:1] for shape in outcome[what]]
        found = [(shape, images) for shape in shapes if (images := self.series(task, cell, f"{what}.{shape}"))]
        return max(found, key=lambda each: each[1].median, default=None)

    def cells(self) -> list[tuple[str, str]]:
        """Return every (task, cell) that has an outcome."""
        found = {
            (path.parent.relative_to(self.folder).as_posix(), path.name.rsplit(".", 2)[0])
            for path in self.folder.glob("*/*/*.json")
        }
        return sorted(found)

    def forget(self, task: str, cell: str, repeat: int) -> None:
        """Measure this cell again."""
        self.path(task, cell, repeat).unlink(missing_ok=True)


def configuration(mode: str, archives: Iterable[Path]) -> str:
    """Return a short name that changes with anything that decides what is measured."""
    digest = hashlib.sha256(f"{mode} {allocator()} {kernels()}".encode())
    files = [path for room in SOURCES for path in sorted((ROOT / room).rglob("*")) if path.is_file()]
    for path in [ROOT / "constraints.txt", *files, *archives]:
        place = path.relative_to(ROOT).parts
        measured = place[0] != "benchmarks" or not {place[1], place[-1]} & LEFT_OUT
        if "__pycache__" not in place and (measured or path in archives):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return f"{mode}-{digest.hexdigest()[:10]}"
