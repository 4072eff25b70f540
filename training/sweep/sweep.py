"""The verb that trains one trial after another."""

import os
import shutil
from dataclasses import dataclass, replace

import optuna
from optuna.trial import TrialState

from training.artifacts import Run, Sweep, write_bytes, write_json
from training.data.prepare import prepare
from training.engine.checkpoint import Checkpoints
from training.engine.history import best_of
from training.engine.train import train
from training.errors import Interrupted, NonFiniteLossError, SettingError, TrialPruned
from training.lock import held
from training.models.weights import load_card
from training.options.config import Config
from training.options.names import Value
from training.options.verbs import SweepOptions
from training.sweep.space import apply, parse_space
from training.sweep.study import (
    Pruner,
    best_run,
    ended_trials,
    next_trial,
    open_study,
    ranked,
    suggest,
    trial_epochs,
    trial_run,
)
from training.tracking.tracker import build_trackers, tracked


@dataclass(frozen=True)
class Row:
    """One trial; the accuracy is that of its best epoch, on the validation split."""

    run: str
    values: dict[str, Value]
    status: str
    num_epochs: int
    validation_accuracy: float | None


def sweep(options: SweepOptions) -> Run:
    """Train until the sweep has as many trials as it should, and return the run of the best; all is in its folder.

    A call that was cut short, at any moment, is gone on with: the trials are those of a call that was not.
    Raises SettingError for a space or a folder that cannot be used.
    """
    space = parse_space(options.space, options.config.train)
    folder = Sweep(options.sweep)
    # What a trial is refused for is to be its values.
    build_trackers(folder.prepared, options.config, options.track)
    with held(folder.folder, "--sweep"):
        study = open_study(folder, options, space)
        _prepare(folder, options.config)
        while (number := len(ended_trials(study))) < options.num_trials:
            trial = next_trial(study, number, options.config.train.seed, options.num_startup_trials)
            _try(folder, options, study, trial, suggest(trial, space))
            summarize(folder, study)
        summarize(folder, study)
        best = best_run(folder)
    print(f"best: {best.folder}, validation accuracy {load_card(best).validation_accuracy:.4f}")
    return best


def summarize(folder: Sweep, study: optuna.Study) -> None:
    """Leave the table of the trials that ended, the best first."""
    rows = []
    for trial in ranked(folder, ended_trials(study)):
        epochs = trial_epochs(folder, trial)
        best = best_of(epochs)
        status = "finished" if trial.state == TrialState.COMPLETE else "pruned"
        accuracy = None if best is None else best.validation_accuracy
        rows.append(Row(trial_run(folder, trial).id, dict(trial.params), status, len(epochs), accuracy))
    write_json(folder.summary, {"trials": [vars(row) for row in rows]})
    write_bytes(folder.table, f"{markdown(rows)}\n".encode())


def markdown(rows: list[Row]) -> str:
    """Return the rows as a table for people."""
    names = list(rows[0].values) if rows else []
    head = ["trial", *names, "epochs", "ended", "validation accuracy"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        accuracy = "" if row.validation_accuracy is None else f"{row.validation_accuracy:.4f}"
        values = [_short(row.values[name]) for name in names]
        lines.append(f"| {' | '.join([row.run, *values, str(row.num_epochs), row.status, accuracy])} |")
    return "\n".join(lines)


def _prepare(folder: Sweep, config: Config) -> None:
    # The sidecar is the last file of the data: without it they are not whole.
    if not folder.prepared.dataset.is_file():
        write_json(folder.prepared.config, config)
        prepare(folder.prepared, config.data)


def _try(
    folder: Sweep, options: SweepOptions, study: optuna.Study, trial: optuna.Trial, values: dict[str, Value]
) -> None:
    number = trial.user_attrs["number"]
    run = folder.trial(number)
    said = ", ".join(f"{name} {_short(value)}" for name, value in values.items())
    print(f"trial {number + 1}/{options.num_trials}: {said}", flush=True)
    if run.folder.exists():
        shutil.rmtree(run.folder)  # of a trial that was cut short
    run.folder.mkdir(parents=True)
    data = run.dataset.parent
    data.symlink_to(os.path.relpath(folder.prepared.dataset.parent, data.parent))
    try:
        config = replace(options.config, train=apply(options.config.train, values))
        write_json(run.config, config)
        with tracked(run, config, options.track, Pruner(trial)) as follower:
            train(run, config.train, options.execution, follower=follower)
    except Interrupted as error:
        raise type(error)("stopped; the same command goes on with the sweep") from error
    except (TrialPruned, NonFiniteLossError, SettingError) as error:
        # Values that do not go together, or with which training diverges, are the sweep's to find and keep away from.
        print(f"trial {number + 1} pruned: {error}", flush=True)
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, load_card(run).validation_accuracy)
    # A trial that is cut short is trained from its beginning: nothing goes on from these.
    Checkpoints(run.checkpoints, options.execution.keep_checkpoints).clear()


def _short(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
