"""A table as a picture: bars on a logarithmic scale, their ranges as lines on them."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.training.table import Figure, Table

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d31", "#7f7f7f", "#e69f00", "#222222", "#b07aa1")
INK = "#222222"
LONGEST_ON_ONE_SCALE = 1000  # the ratio from which bars of one panel are drawn on a logarithmic scale


def draw(table: Table, path: Path) -> bool:
    """Write the picture, a panel for each column; False if nothing of the table was measured."""
    rows = {name: row for name, row in table.rows.items() if isinstance(row, dict)}
    columns = [column for column in table.columns if any(column in row for row in rows.values())]
    if not columns:
        return False
    size = (2.2 + 3.0 * len(columns), 1.5 + 0.36 * len(rows))
    figure, panels = plt.subplots(1, len(columns), figsize=size, sharey=True, squeeze=False)
    for axes, column in zip(panels[0], columns, strict=True):
        found = {place: row[column] for place, row in enumerate(rows.values()) if column in row}
        _bars(axes, found)
        axes.set_title(f"{column}{f', {table.unit}' if table.unit else ''}", fontsize=10, loc="left", color=INK)
    panels[0][0].set_yticks(range(len(rows)), list(rows))
    panels[0][0].invert_yaxis()
    figure.suptitle(table.title, x=0.01, ha="left", fontsize=12, color=INK)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def _bars(axes: Axes, found: dict[int, Figure]) -> None:
    for place, value in found.items():
        axes.barh(place, value.median, color=COLOURS[place % len(COLOURS)], height=0.7)
        axes.hlines(place, value.low, value.high, color=INK, linewidth=2)
        axes.annotate(f"{value.median:.3g}" if value.median < 1000 else f"{value.median:,.0f}",
                      (max(value.high, value.median), place), xytext=(4, 0), textcoords="offset points",
                      va="center", fontsize=8, color=INK)  # fmt: skip
    largest, least = max(each.high for each in found.values()), min(each.low for each in found.values())
    if largest > LONGEST_ON_ONE_SCALE * least:
        axes.set_xscale("log")
        axes.set_xlim(least / 4, largest * 8)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_xlim(0, largest * 1.25)
        axes.locator_params(axis="x", nbins=4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8)
