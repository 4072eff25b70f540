"""Pictures of a run, drawn without matplotlib's global state."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from training.artifacts import Split, write_bytes
from training.evaluation.metrics import CalibrationBin

MOST_CLASSES_WITH_NUMBERS = 20
MOST_CLASSES_WITH_NAMES = 60
TRAIN, VALIDATION, QUIET = "#1f77b4", "#d1495b", "#8a8a8a"


def plot_learning_curves(path: Path, epochs: list[dict[str, Any]], kept_epoch: int) -> None:
    """Draw loss and accuracy of each epoch, training and validation, with the kept epoch marked."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    numbers = [record["epoch"] for record in epochs]
    for axes, key in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        axes.plot(
            numbers, [record[f"train_{key}"] for record in epochs], color=TRAIN, marker=".", label="training, augmented"
        )
        axes.plot(
            numbers,
            [record[f"validation_{key}"] for record in epochs],
            color=VALIDATION,
            marker=".",
            label="validation",
        )
        axes.axvline(kept_epoch, color=QUIET, linestyle="--", linewidth=1, label=f"kept: epoch {kept_epoch}")
        axes.set(xlabel="epoch", title="mean cross entropy" if key == "loss" else "accuracy")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
        if key == "loss":
            axes.set_yscale("log")
    _save(figure, path)


def plot_confusion_matrix(path: Path, confusion: list[list[int]], classes: list[str], split: Split = "test") -> None:
    """Draw the share of each true class (rows) that got each answer (columns), with counts where they fit."""
    counts = np.array(confusion)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    num_classes = len(classes)
    side = min(12.0, max(4.5, 0.5 * num_classes + 2))
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    axes = figure.subplots()
    # The square root lifts the few mistakes out of the white.
    picture = axes.imshow(np.sqrt(share), cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="answer", ylabel="true class", title=f"confusion matrix, {split} split")
    if num_classes <= MOST_CLASSES_WITH_NAMES:
        longest = max(len(name) for name in classes)
        axes.set_xticks(range(num_classes), classes, rotation=90 if longest > 3 else 0)
        axes.set_yticks(range(num_classes), classes)
    if num_classes <= MOST_CLASSES_WITH_NUMBERS:
        for row, column in zip(*np.nonzero(counts), strict=True):
            colour = "white" if share[row, column] > 0.4 else "black"
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour, fontsize=9)
    shares = [0, 0.01, 0.1, 0.25, 0.5, 1]
    bar = figure.colorbar(picture, ax=axes, ticks=np.sqrt(shares), shrink=0.8)
    bar.ax.set_yticklabels([f"{each:.0%}" for each in shares])
    bar.set_label("share of the true class")
    _save(figure, path)


def plot_reliability(path: Path, bins: list[CalibrationBin], error: float) -> None:
    """Draw accuracy against confidence (Guo et al. 2017, figure 1) above the number of answers in each bin."""
    figure = Figure(figsize=(5.5, 6.5), layout="constrained")
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    width = bins[0].high - bins[0].low
    filled = [each for each in bins if each.num_samples]
    middles = [(each.low + each.high) / 2 for each in filled]
    accuracies = [each.accuracy for each in filled]
    confidences = [each.mean_confidence for each in filled]
    axes.bar(middles, accuracies, width=width * 0.95, color=TRAIN, alpha=0.75, label="accuracy")
    axes.scatter(confidences, confidences, color=VALIDATION, s=22, zorder=3, label="mean confidence")
    axes.vlines(confidences, accuracies, confidences, color=VALIDATION, linewidth=1.5, zorder=3)
    axes.plot([0, 1], [0, 1], color=QUIET, linestyle="--", linewidth=1, label="perfectly calibrated")
    axes.set(
        xlim=(0, 1), ylim=(0, 1.05), ylabel="accuracy", title=f"expected calibration error {error:.2%}, test split"
    )
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left")
    below.bar(
        [(each.low + each.high) / 2 for each in bins],
        [each.num_samples for each in bins],
        width=width * 0.95,
        color=QUIET,
    )
    below.set_yscale("symlog", linthresh=1)
    below.set(xlabel="confidence", ylabel="answers")
    below.grid(alpha=0.3, axis="y")
    _save(figure, path)


def plot_profile(path: Path, shares: dict[str, dict[str, float]], phases: dict[str, dict[str, float]]) -> None:
    """Draw each batch size's operators by share, and the milliseconds of its phases.

    Both map a batch size's name to its parts, the same parts in the same order for all.
    """
    figure = Figure(
        figsize=(11, 1.6 + 0.7 * len(shares) + 0.22 * len(next(iter(shares.values())))), layout="constrained"
    )
    above, below = figure.subplots(2, 1)
    for axes, bars, unit in ((above, shares, "share of the operators' own time"), (below, phases, "ms per batch")):
        names = list(bars)
        left = np.zeros(len(names))
        colours = colormaps["tab20"].colors  # type: ignore[attr-defined]
        for index, part in enumerate(next(iter(bars.values()))):
            widths = np.array([bars[name][part] for name in names])
            axes.barh(names, widths, left=left, color=colours[index % len(colours)], label=part)
            left += widths
        axes.invert_yaxis()
        axes.set(xlabel=unit, ylabel="images per batch")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
    above.set_xlim(0, 1)
    above.xaxis.set_major_formatter(PercentFormatter(1))
    _save(figure, path)


def plot_runs(path: Path, runs: dict[str, list[dict[str, Any]]]) -> bool:
    """Draw loss and accuracy of each run's epochs, a colour a run; return whether there was anything to draw."""
    if not runs:
        return False
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    colours = colormaps["tab20" if len(runs) > 10 else "tab10"].colors  # type: ignore[attr-defined]
    above = figure.subplots(1, 2)
    for axes, key in zip(above, ("loss", "accuracy"), strict=True):
        for (name, epochs), colour in zip(runs.items(), colours, strict=False):
            numbers = [record["epoch"] for record in epochs]
            validation, train = ([record[f"{split}_{key}"] for record in epochs] for split in ("validation", "train"))
            axes.plot(numbers, validation, color=colour, marker=".", label=name)
            axes.plot(numbers, train, color=colour, linestyle=":", linewidth=1)
        axes.set(xlabel="epoch", title="mean cross entropy" if key == "loss" else "accuracy")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    above[0].set_yscale("log")
    figure.legend(
        *above[0].get_legend_handles_labels(),
        loc="outside right upper",
        fontsize=8,
        title="validation; dotted: training",
    )
    _save(figure, path)
    return True


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)  # type: ignore[no-untyped-call]
    write_bytes(path, buffer.getvalue())
