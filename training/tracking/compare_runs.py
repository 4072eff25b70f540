"""Runs side by side: how their options differ, what they reached, how they learnt."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.artifacts import Run, write_bytes, write_json
from training.engine.history import best_of
from training.errors import RunError, SettingError
from training.evaluation.plots import plot_runs
from training.options.flat_config import differences
from training.tracking.record import epochs_of, load_record

MOST_RUNS = 20  # that lines of different colours can be told apart of


@dataclass(frozen=True)
class Row:
    """One run; figures are those of the epoch that was kept, the last column of the test split, where it was measured.

    `commit` ends with a plus where the code was changed since.
    """

    run: str
    status: str
    commit: str
    options: dict[str, Any]
    num_epochs: int
    kept_epoch: int | None
    train_loss: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    test_accuracy: float | None
    seconds: float


def compare_runs(folder: Path, runs: Sequence[Run]) -> None:
    """Leave table, figures and picture of the runs in the folder, and print the table.

    Raises SettingError for too few or too many runs, RunError for a folder that no training has left.
    """
    if not 2 <= len(runs) <= MOST_RUNS:
        raise SettingError(f"compare was given {len(runs)} run(s); allowed are 2 to {MOST_RUNS}")
    for run in runs:
        if not run.folder.is_dir():
            raise RunError(f"{run.folder} is not a folder")
    records = [load_record(run) for run in runs]
    names = _names(runs)
    changed = differences([record["config"] for record in records])
    rows = []
    for index, (name, record) in enumerate(zip(names, records, strict=True)):
        rows.append(_row(name, record, {option: values[index] for option, values in changed.items()}))
    write_json(folder / "comparison.json", {"runs": [vars(row) for row in rows]})
    table = markdown(rows)
    drawn = plot_runs(folder / "comparison.png", _curves(names, records))
    picture = "\n![learning curves](comparison.png)\n" if drawn else ""
    write_bytes(folder / "comparison.md", f"{table}\n{picture}".encode())
    print(f"{table}\n\n{folder / 'comparison.md'}{', comparison.png' if drawn else ''}")


def markdown(rows: list[Row]) -> str:
    """Return the rows as a table for people: the options that differ, then the figures."""
    options = list(rows[0].options)
    head = ["run", *(option.removeprefix("train.") for option in options), "commit", "ended", "epoch kept"]
    head += ["training loss", "validation loss", "validation accuracy", "test accuracy", "s"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        kept = "" if row.kept_epoch is None else f"{row.kept_epoch} of {row.num_epochs}"
        cells = [row.run, *(_cell(row.options[option]) for option in options), row.commit, row.status, kept]
        figures = (row.train_loss, row.validation_loss, row.validation_accuracy, row.test_accuracy)
        cells += ["" if figure is None else f"{figure:.4f}" for figure in figures]
        lines.append(f"| {' | '.join([*cells, f'{row.seconds:.1f}'])} |")
    if not options:
        lines += ["", "Their options are the same."]
    return "\n".join(lines)


def _row(name: str, record: dict[str, Any], options: dict[str, Any]) -> Row:
    epochs = epochs_of(record)
    code = record["code"]
    # A run that did not come to its end has kept the best epoch so far.
    best = best_of(epochs)
    kept = {} if best is None else asdict(best)
    return Row(
        run=name,
        status=record["status"],
        commit="" if code is None else code["commit"][:10] + ("+" if code["dirty"] else ""),
        options=options,
        num_epochs=len(epochs),
        kept_epoch=kept.get("epoch"),
        train_loss=kept.get("train_loss"),
        validation_loss=kept.get("validation_loss"),
        validation_accuracy=kept.get("validation_accuracy"),
        test_accuracy=record["figures"].get("fp32", {}).get("accuracy"),
        seconds=sum(each.seconds for each in epochs),
    )


def _curves(names: list[str], records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {name: record["epochs"] for name, record in zip(names, records, strict=True) if record["epochs"]}


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the folders' own names where these tell the runs apart, else their paths."""
    names = [run.id for run in runs]
    if len(set(names)) == len(names):
        return names
    paths = [str(run.folder) for run in runs]
    if len(set(paths)) < len(paths):
        raise SettingError("compare was given a run twice")
    return paths


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
