"""The verb that finds the weights."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace

import torch

from training.artifacts import Run, read_json, sha256, write_json
from training.data.dataset import Dataset, load_dataset
from training.engine.assembly import build_engine
from training.engine.checkpoint import Checkpoints
from training.engine.engine import Engine, num_steps
from training.engine.history import EpochRecord, Follower, NoTrackers, best_of
from training.engine.step_profile import profiling
from training.errors import Interrupted, SettingError
from training.lock import held
from training.models.resnet import build_model
from training.models.weights import WeightsCard, save_card, save_weights
from training.options.config import TrainConfig, config_from, train_config_from
from training.options.dotted import differences
from training.options.execution import ExecutionOptions
from training.options.names import options_by_name
from training.parallel.single import SingleProcess
from training.parallel.strategy import Strategy

MAY_CHANGE = ("loader.workers", "loader.prefetch", "loader.pin_memory")  # when resumed: who reads, not what


def train(
    run: Run,
    config: TrainConfig,
    execution: ExecutionOptions | None = None,
    *,
    resume: bool = False,
    strategy: Strategy | None = None,
    follower: Follower | None = None,
) -> None:
    """Leave the weights of the best epoch on the validation split, their sidecar and the history in the run.

    One process and one thread count give bit-equal weights for the same config, interrupted and resumed or not.
    Its config is written into the run's, and older checkpoints are removed, once nothing was refused.
    The follower is told of each epoch in the main process.
    Raises NonFiniteLossError, with place and module, when numbers become NaN or infinite, Interrupted after a signal.
    """
    execution, follower = execution or ExecutionOptions(), follower or NoTrackers()
    strategy = strategy or SingleProcess(execution.torch_device())
    dataset = load_dataset(run)
    checkpoints = Checkpoints(run.checkpoints, execution.keep_checkpoints)
    with ExitStack() as stack:
        if strategy.world.is_main:
            stack.enter_context(held(run.folder, "--run"))
        engine = build_engine(run, dataset, config, execution, strategy, stack)
        if resume:
            _resume(run, engine, checkpoints)
        stack.enter_context(_between_steps(engine, run, execution, checkpoints))
        if strategy.world.is_main:
            # What was there is touched only here, when nothing is left that could be refused.
            follower.begin()
            recorded = config_from(read_json(run.config, written_by="prepare"))
            write_json(run.config, replace(recorded, train=config))
            if not resume:
                checkpoints.clear()
        stack.enter_context(_leaving_a_checkpoint(engine, run, checkpoints))
        for record in engine.epochs():
            if strategy.world.is_main:
                _report(run, engine, record)
                # Before the checkpoint: an epoch may be told again where training is resumed, but never be missing.
                follower.epoch(record)
            _save(engine, checkpoints)
    if strategy.world.is_main:
        _finish(run, dataset, engine)


def _report(run: Run, engine: Engine, record: EpochRecord) -> None:
    """Print the epoch; write its weights if they are the best."""
    if record is best_of(engine.progress.history):
        _save_kept(run, engine)
    print(
        f"epoch {record.epoch}/{engine.stepper.config.epochs}: loss {record.train_loss:.4f}, accuracy "
        f"{record.train_accuracy:.4f}; validation: loss {record.validation_loss:.4f}, accuracy "
        f"{record.validation_accuracy:.4f}; {record.seconds:.1f} s",
        flush=True,
    )


def _save_kept(run: Run, engine: Engine) -> None:
    save_weights(run, {name: value.contiguous() for name, value in engine.kept.items()})


def _finish(run: Run, dataset: Dataset, engine: Engine) -> None:
    """Write the history and the sidecar."""
    config, history = engine.stepper.config, engine.progress.history
    best = best_of(history)
    assert best is not None, "there is at least one epoch"
    if len(history) < config.epochs:
        print(f"stopped early: none of the last {config.patience} epochs was better than epoch {best.epoch}")
    write_json(run.history, {"kept_epoch": best.epoch, "epochs": [asdict(record) for record in history]})
    with torch.device("meta"):
        whole = build_model(config.architecture, num_classes=len(dataset.classes), channels=dataset.channels)
    card = WeightsCard(
        architecture=config.architecture,
        num_parameters=sum(parameter.numel() for parameter in whole.parameters()),
        classes=dataset.classes,
        channels=dataset.channels,
        height=dataset.height,
        width=dataset.width,
        mean=dataset.mean,
        std=dataset.std,
        dataset=dataset.source,
        seed=config.seed,
        epoch=best.epoch,
        validation_accuracy=best.validation_accuracy,
        validation_loss=best.validation_loss,
        torch_version=torch.__version__,
        sha256=sha256(run.weights),
        train=asdict(config),
    )
    save_card(run, card)
    print(f"kept epoch {best.epoch}: validation accuracy {best.validation_accuracy:.4f}")


def _save(engine: Engine, checkpoints: Checkpoints) -> None:
    """Write where the training is; every process must call, the main one writes."""
    state = {"train": asdict(engine.stepper.config), "engine": engine.state_dict()}
    if engine.stepper.strategy.world.is_main:
        checkpoints.save(engine.progress.num_steps, state)


def _resume(run: Run, engine: Engine, checkpoints: Checkpoints) -> None:
    """Take up the newest checkpoint; raises SettingError if it was made with other options."""
    config, strategy = engine.stepper.config, engine.stepper.strategy
    is_main = strategy.world.is_main
    # One process reads: others may look when it has written a newer one.
    state = strategy.world.broadcast(checkpoints.load_newest() if is_main else None)
    if state is None:
        where = f"no checkpoint in {checkpoints.folder} yet: from the beginning"
    else:
        _refuse_others(train_config_from(state["train"]), config)
        engine.load_state_dict(state["engine"], config.seed)
        progress = engine.progress
        where = f"resumed in epoch {progress.epoch}, after step {progress.epoch_steps}"
        if is_main and engine.kept:
            # A later epoch's may be there, of a process that was killed before its checkpoint.
            _save_kept(run, engine)
    if is_main:
        print(where, flush=True)


def _refuse_others(begun_with: TrainConfig, config: TrainConfig) -> None:
    options = {".".join(option.path): name.replace("_", "-") for name, option in options_by_name(TrainConfig).items()}
    others = [
        f"{as_given(options[name], here)} (it has {before})"
        for name, (before, here) in differences([asdict(begun_with), asdict(config)]).items()
        if name not in MAY_CHANGE
    ]
    if others:
        raise SettingError(f"--resume goes on as its checkpoint began: leave out {', '.join(others)}, or train anew")


def as_given(option: str, value: object) -> str:
    """Return the value of an option as the command line takes it."""
    match value:
        case True:
            return f"--{option}"
        case False:
            return f"--no-{option}"
    return f"--{option} {value}"


@contextmanager
def _between_steps(engine: Engine, run: Run, execution: ExecutionOptions, checkpoints: Checkpoints) -> Iterator[None]:
    config, strategy = engine.stepper.config, engine.stepper.strategy
    total = config.epochs * num_steps(engine.source, config.accumulation)
    # One trace is enough: the processes do the same.
    num_profiled = execution.profile_steps if strategy.world.is_main else 0
    with profiling(run, num_profiled, total - engine.progress.num_steps, strategy.world.device) as profile_step:

        def after_step(num_taken: int) -> None:
            profile_step()
            if execution.checkpoint_steps is not None and num_taken % execution.checkpoint_steps == 0:
                _save(engine, checkpoints)

        engine.after_step = after_step
        yield


@contextmanager
def _leaving_a_checkpoint(engine: Engine, run: Run, checkpoints: Checkpoints) -> Iterator[None]:
    try:
        yield
    except Interrupted as error:
        _save(engine, checkpoints)
        message = f"stopped after {error}; `python -m training train --run {run.folder} --resume` goes on"
        raise type(error)(message) from error
