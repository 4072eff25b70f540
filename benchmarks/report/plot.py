"""Latency against throughput: one line a system, one point for each number of clients."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.suite.results import Results

# Validated for colour-blind readers; ours are the saturated ones, and each also has a marker of its own.
STYLES = {
    "workers": ("torchgate, embedded workers", "#0072b2", "o", 2.4),
    "grpc": ("torchgate over TorchServe, gRPC", "#009e73", "s", 2.4),
    "rest": ("torchgate over TorchServe, REST", "#56b4e9", "v", 1.6),
    "mosec": ("Mosec", "#d55e00", "^", 1.6),
    "litserve": ("LitServe", "#cc79a7", "D", 1.6),
    "batching": ("TorchServe, its own batching", "#8c6d31", "P", 1.6),
    "stock": ("TorchServe, stock", "#7f7f7f", "X", 1.6),
    "stock-one-thread": ("TorchServe, stock, one thread a worker", "#e69f00", "*", 1.6),
}
INK, FAINT = "#222222", "#888888"
RAW_LINE = {"forward": ("raw forward passes", "--"), "decode": ("raw, with decoding and ranking", ":")}


def draw(results: Results, path: Path, workload: str) -> bool:
    """Write the plot; False if nothing of the workload was measured."""
    found: dict[str, list[str]] = {system: [] for system in STYLES}
    for task, cell in results.cells():
        system, _, of_workload = task.partition("/")
        if system in found and of_workload == workload and cell.isdecimal():
            found[system].append(cell)
    found = {system: sorted(cells, key=int) for system, cells in found.items() if cells}
    if not found:
        return False
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 4.6), sharex=True, sharey=True)
    for axis, (name, title) in zip(axes, (("p50_ms", "median"), ("p99_ms", "99th percentile")), strict=True):
        for system, cells in found.items():
            _line(axis, results, f"{system}/{workload}", cells, name, system)
        for what, (label, dashes) in RAW_LINE.items():
            limit = results.limit(workload, what)
            if limit:
                axis.axvline(limit[1].median, color=FAINT, linestyle=dashes, linewidth=1.2, label=label)
        axis.set_yscale("log")
        axis.set_title(title, loc="left", fontsize=11, color=INK)
        axis.set_xlabel("requests answered per second", color=INK)
        axis.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("latency, ms (log)", color=INK)
    axes[0].set_xlim(left=0)
    axes[0].yaxis.set_major_formatter(mpl.ticker.ScalarFormatter())
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False, fontsize=9)
    clients = ", ".join(max((len(cells), cells) for cells in found.values())[1])
    figure.suptitle(
        f"Latency and throughput with {clients} clients in a closed loop (each line from left to right); bars: repeats",
        x=0.01, ha="left", fontsize=11, color=INK,
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0.15, 1, 1))
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _line(axis: Axes, results: Results, key: str, cells: Sequence[str], name: str, system: str) -> None:
    label, color, marker, width = STYLES[system]
    speeds, latencies = (
        [found for cell in cells if (found := results.series(key, cell, figure))] for figure in ("throughput", name)
    )
    axis.errorbar(
        [each.median for each in speeds],
        [each.median for each in latencies],
        xerr=[[each.median - each.low for each in speeds], [each.high - each.median for each in speeds]],
        yerr=[[each.median - each.low for each in latencies], [each.high - each.median for each in latencies]],
        label=label, color=color, marker=marker, markersize=6, linewidth=width, elinewidth=0.8, capsize=0,
    )  # fmt: skip
