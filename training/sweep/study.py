"""The study of a sweep: which values come next, and what is left of a call that was killed."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from training.artifacts import Run, Sweep, read_json, write_json
from training.engine.history import EpochRecord, best_of, merit
from training.errors import RunError, SettingError, TrialPruned
from training.options.flat_config import differences
from training.options.names import Value
from training.options.verbs import SweepOptions
from training.sweep.space import Categorical, Dimension
from training.tracking.record import epochs_of, load_record

NAME = "sweep"
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
NUMBER = "number"


class Pruner:
    """Ends the training of a trial that does worse, after as many epochs, than the median of the finished ones."""

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial

    def __call__(self, record: EpochRecord) -> None:
        """Report the epoch; raises TrialPruned."""
        self._trial.report(record.validation_accuracy, record.epoch)
        if self._trial.should_prune():
            raise TrialPruned(
                f"validation accuracy {record.validation_accuracy:.4f} is below the median after epoch {record.epoch}"
            )


def open_study(sweep: Sweep, options: SweepOptions, space: list[Dimension]) -> optuna.Study:
    """Return the sweep's study, begun if it is missing; raises SettingError if it was begun with other options."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    asked = {
        "space": [asdict(dimension) for dimension in space],
        "num_startup_trials": options.num_startup_trials,
        "num_startup_epochs": options.num_startup_epochs,
        "config": asdict(options.config),
    }
    if sweep.options.is_file():
        _refuse_others(sweep, asked)
    else:
        write_json(sweep.options, asked)
    study = optuna.create_study(
        storage=_storage(sweep.study),
        study_name=NAME,
        direction="maximize",
        load_if_exists=True,
        pruner=MedianPruner(options.num_startup_trials, n_warmup_steps=options.num_startup_epochs),
    )
    _close_abandoned(study)
    return study


def next_trial(study: optuna.Study, number: int, seed: int, num_startup_trials: int) -> optuna.Trial:
    """Return the next trial. Its values depend on the seed, its number and the trials that ended, on nothing else.

    So a sweep that was interrupted tries what it would have tried, the trial that was cut short first; a generator of
    the whole study would begin again.
    """
    (drawn,) = np.random.SeedSequence([seed, number]).generate_state(1)
    study.sampler = TPESampler(seed=int(drawn), n_startup_trials=num_startup_trials)
    trial = study.ask()
    trial.set_user_attr(NUMBER, number)
    return trial


def suggest(trial: optuna.Trial, space: list[Dimension]) -> dict[str, Value]:
    """Return the trial's values, by option."""
    values: dict[str, Value] = {}
    for each in space:
        if isinstance(each, Categorical):
            chosen = trial.suggest_categorical(each.name, each.values)
            assert chosen is not None, "None is no value of a choice"
            values[each.name] = chosen
        elif each.integer:
            values[each.name] = trial.suggest_int(each.name, int(each.low), int(each.high), log=each.log)
        else:
            values[each.name] = trial.suggest_float(each.name, each.low, each.high, log=each.log)
    return values


def ended_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that came to an end, finished or pruned, in their order."""
    trials = study.get_trials(deepcopy=False, states=ENDED)
    return sorted(trials, key=lambda each: int(each.user_attrs[NUMBER]))


def best_run(sweep: Sweep) -> Run:
    """Return the run of the highest validation accuracy; raises RunError if the sweep has none that was finished."""
    if not sweep.study.is_file():
        raise RunError(f"{sweep.study} is not there; `python -m training sweep` writes it")
    study = optuna.load_study(study_name=NAME, storage=_storage(sweep.study))
    ended = ended_trials(study)
    finished = [each for each in ended if each.state == TrialState.COMPLETE]
    if not finished:
        where = f"all {len(ended)} trials were pruned" if ended else "there is no finished trial yet"
        more = f" with a --num-trials of more than {len(ended)}" if ended else ""
        raise RunError(f"{where} in the sweep {sweep.folder}; `python -m training sweep` goes on{more}")
    return trial_run(sweep, ranked(sweep, finished)[0])


def trial_run(sweep: Sweep, trial: FrozenTrial) -> Run:
    """Return the run of a trial."""
    return sweep.trial(int(trial.user_attrs[NUMBER]))


def trial_epochs(sweep: Sweep, trial: FrozenTrial) -> list[EpochRecord]:
    """Return the epochs of a trial's run; of one whose values were refused there are none, nor a record."""
    run = trial_run(sweep, trial)
    return epochs_of(load_record(run)) if run.record.is_file() else []


def ranked(sweep: Sweep, trials: list[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials by their best epochs, the best first; those that were pruned are last."""

    def rank(trial: FrozenTrial) -> tuple[bool, tuple[float, ...]]:
        best = best_of(trial_epochs(sweep, trial))
        return trial.state == TrialState.COMPLETE, merit(best) if best is not None else ()

    return sorted(trials, key=rank, reverse=True)


def _refuse_others(sweep: Sweep, asked: dict[str, Any]) -> None:
    # As the file has it: tuples are lists there.
    now = json.loads(json.dumps(asked))
    for name, (before, here) in differences([read_json(sweep.options, written_by="sweep"), now]).items():
        raise SettingError(
            f"--sweep: {sweep.folder} was begun with another {name}, {before} and not {here}; "
            "give the same options to go on, or another folder to begin anew"
        )


def _close_abandoned(study: optuna.Study) -> None:
    """Close trials that nobody trains any more; the next one is asked for the same number and gets the same values."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)


def _storage(path: Path) -> RDBStorage:
    return RDBStorage(f"sqlite:///{path.resolve()}")
