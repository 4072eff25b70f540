"""A training from its first step, or its newest checkpoint, to its last epoch, whatever network it trains."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass

from training.artifacts import Run, write_json
from training.engine.checkpoint import Checkpoints
from training.engine.engine import Engine, num_steps
from training.engine.history import EpochRecord, Follower
from training.engine.step_profile import profiling
from training.errors import Interrupted, RunError, SettingError
from training.options.config import TrainConfig, train_config_from
from training.options.execution import ExecutionOptions
from training.options.flat_config import differences
from training.options.names import options_by_name

MAY_CHANGE = ("loader.workers", "loader.prefetch", "loader.pin_memory")  # when resumed: who reads, not what


@dataclass
class TrainingLoop:
    """An engine, the run whose folder it leaves checkpoints and history in, and who is told of its epochs."""

    run: Run
    engine: Engine
    execution: ExecutionOptions
    follower: Follower
    command: str
    """What trains this run, after `python -m training`."""

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.run.checkpoints, self.execution.keep_checkpoints)
        self.is_main = self.engine.stepper.strategy.world.is_main

    def train(self, begin: Callable[[], None], *, resume: bool) -> EpochRecord:
        """Take all epochs, leave the history, and return the epoch whose weights the engine has kept.

        `begin` is called on the main process when nothing is left that could be refused. A checkpoint follows each
        epoch. Raises NonFiniteLossError, and Interrupted, with a checkpoint, after the step in which a signal came.
        """
        engine = self.engine
        with ExitStack() as stack:
            if resume:
                self._resume()
            stack.enter_context(self._between_steps())
            if self.is_main:
                self.follower.begin()
                begin()
                if not resume:
                    self.checkpoints.clear()
            stack.enter_context(self._leaving_a_checkpoint())
            for record in engine.epochs():
                if self.is_main:
                    _report(engine, record)
                    # Before the checkpoint: a resumed training may tell an epoch again, but never leave one out.
                    self.follower.epoch(record)
                self._save()
        best = engine.best()
        assert best is not None, "there is at least one epoch that may be kept"
        if self.is_main:
            self._finish(best)
        return best

    def _finish(self, best: EpochRecord) -> None:
        config, history = self.engine.stepper.config, self.engine.progress.history
        if len(history) < config.epochs:
            print(f"stopped early: none of the last {config.patience} epochs was better than epoch {best.epoch}")
        write_json(self.run.history, {"kept_epoch": best.epoch, "epochs": [asdict(record) for record in history]})

    def _save(self) -> None:
        """Write where the training is; every process must call, the main one writes."""
        state = {"train": asdict(self.engine.stepper.config), "engine": self.engine.state_dict()}
        if self.is_main:
            self.checkpoints.save(self.engine.progress.num_steps, state)

    def _resume(self) -> None:
        """Take up the newest checkpoint; raises SettingError if it was made with other options."""
        stepper = self.engine.stepper
        # One process reads: others may look when it has written a newer one.
        state = stepper.strategy.world.broadcast(self.checkpoints.load_newest() if self.is_main else None)
        if state is None:
            where = f"no checkpoint in {self.checkpoints.folder} yet: from the beginning"
        else:
            _refuse_others(train_config_from(state["train"]), stepper.config, stepper.option_prefix)
            if state["engine"]["schedule"].keys() != stepper.schedule.state_dict().keys():
                raise RunError(f"the checkpoints in {self.checkpoints.folder} are of an older release: train anew")
            self.engine.load_state_dict(state["engine"], stepper.config.seed)
            progress = self.engine.progress
            where = f"resumed in epoch {progress.epoch}, after step {progress.epoch_steps}"
        if self.is_main:
            print(where, flush=True)

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        stepper, execution = self.engine.stepper, self.execution
        total = stepper.config.epochs * num_steps(self.engine.source, stepper.config.accumulation)
        # One trace is enough: the processes do the same.
        num_profiled = execution.profile_steps if self.is_main else 0
        num_left = total - self.engine.progress.num_steps
        with profiling(self.run, num_profiled, num_left, stepper.strategy.world.device) as profile_step:

            def after_step(num_taken: int) -> None:
                profile_step()
                if execution.checkpoint_steps is not None and num_taken % execution.checkpoint_steps == 0:
                    self._save()

            self.engine.after_step = after_step
            yield

    @contextmanager
    def _leaving_a_checkpoint(self) -> Iterator[None]:
        try:
            yield
        except Interrupted as error:
            self._save()
            message = f"stopped after {error}; `python -m training {self.command} --resume` goes on"
            raise type(error)(message) from error


def _report(engine: Engine, record: EpochRecord) -> None:
    print(
        f"{engine.title(record.epoch)}: loss {record.train_loss:.4f}, accuracy {record.train_accuracy:.4f}; "
        f"validation: loss {record.validation_loss:.4f}, accuracy {record.validation_accuracy:.4f}; "
        f"{record.seconds:.1f} s",
        flush=True,
    )


def _refuse_others(begun_with: TrainConfig, config: TrainConfig, prefix: str) -> None:
    options = {".".join(option.path): name.replace("_", "-") for name, option in options_by_name(TrainConfig).items()}
    others = [
        f"{as_given(prefix + options[name], here)} (it has {before})"
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
