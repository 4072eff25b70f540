"""A table of figures, as Markdown for people and as JSON to be read later."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class Figure:
    """One measurement: its median, and the range around it that the table's note names."""

    median: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Self:
        """Return a figure without a range."""
        return cls(value, value, value)

    def __str__(self) -> str:
        spread = "" if self.low == self.high else f" ({_short(self.low)}-{_short(self.high)})"
        return _short(self.median) + spread


Row = dict[str, Figure] | str
"""Figures by column, or the reason why there are none."""


@dataclass(frozen=True)
class Table:
    """Rows against columns; `note` says under which conditions, `findings` what comes out of the figures."""

    name: str
    title: str
    note: str
    unit: str
    columns: tuple[str, ...]
    rows: Mapping[str, Row]
    findings: list[str] = field(default_factory=list)

    def median(self, row: str, column: str) -> float | None:
        """Return one figure; None where there is none."""
        found = self.rows.get(row)
        return found[column].median if isinstance(found, dict) and column in found else None

    def markdown(self) -> str:
        """Return it for people."""
        heads = [f"{column}{f', {self.unit}' if self.unit else ''}" for column in self.columns]
        lines = [f"### {self.title}", "", self.note, "", f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
        for name, row in self.rows.items():
            if isinstance(row, str):
                cells = [f"not measured: {row}", *[""] * (len(self.columns) - 1)]
            else:
                cells = [str(row.get(column, "")) for column in self.columns]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return "\n".join([*lines, *(line for finding in self.findings for line in ("", finding))])


def write_table(folder: Path, table: Table) -> None:
    """Keep a table as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{table.name}.json").write_text(json.dumps(asdict(table), indent=1, allow_nan=False))


def read_table(text: str) -> Table:
    """Return a table that was kept."""
    document: dict[str, Any] = json.loads(text)
    rows = {
        name: row if isinstance(row, str) else {column: Figure(**figure) for column, figure in row.items()}
        for name, row in document["rows"].items()
    }
    return Table(**{**document, "rows": rows, "columns": tuple(document["columns"])})


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
