"""The training loop: steps, epochs, and the places between them at which it can be left and gone on with."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from training.data.batches import BatchSource
from training.engine.checkpoint import random_state, seed_all, set_random_state
from training.engine.history import EpochRecord, best_of
from training.engine.interruption import Interruption
from training.engine.step import Stepper, StepResult, cross_entropy
from training.errors import Interrupted, NonFiniteLossError
from training.options.config import TrainConfig
from training.parallel.strategy import Pass

EVALUATION_BATCH_SIZE = 64
Item = TypeVar("Item")


@dataclass
class Progress:
    """How far a training is; losses and counts are sums over the images of the epoch so far."""

    epoch: int = 1
    num_steps: int = 0
    epoch_steps: int = 0
    epoch_loss: float = 0.0
    epoch_correct: int = 0
    epoch_images: int = 0
    epoch_seconds: float = 0.0
    epoch_learning_rate: float | None = None
    history: list[EpochRecord] = field(default_factory=list)

    @property
    def mean_loss(self) -> float:
        """Over the images of the epoch so far."""
        return self.epoch_loss / self.epoch_images

    @property
    def accuracy(self) -> float:
        """Over the images of the epoch so far."""
        return self.epoch_correct / self.epoch_images

    def take(self, result: StepResult) -> None:
        """Count a step."""
        self.num_steps += 1
        self.epoch_steps += 1
        self.epoch_loss += result.loss
        self.epoch_correct += result.num_correct
        self.epoch_images += result.num_images

    def finished(self, config: TrainConfig) -> bool:
        """Tell whether all epochs are done, or the last ones were no better than the best for too long."""
        best = best_of(self.history)
        stale = best is not None and config.patience is not None and len(self.history) - best.epoch >= config.patience
        return self.epoch > config.epochs or stale


@dataclass
class Engine:
    """A training under way. `kept` is the whole state of the best epoch's network, on the main process."""

    stepper: Stepper
    source: BatchSource
    validation: tuple[Tensor, Tensor]
    interruption: Interruption
    before_step: Callable[[int], None] = lambda _: None
    """Called before each step, with the number of those that were taken."""
    after_step: Callable[[int], None] = lambda _: None
    """Called after each step, with the number of those that were taken."""
    validated: Callable[[nn.Module], nn.Module] = lambda network: network
    """Returns what the validation images go through: the network itself, or what it stands for."""
    first_kept_epoch: int = 1
    """Weights of earlier epochs are never kept."""
    progress: Progress = field(default_factory=Progress)
    kept: dict[str, Tensor] = field(default_factory=dict)

    def epochs(self) -> Iterator[EpochRecord]:
        """Train; give each epoch's record when it is over and `kept` holds the best weights.

        Raises NonFiniteLossError, and Interrupted after the step in which a signal came, or after the last epoch; the
        engine's state is whole then, and can be saved.
        """
        while not self.progress.finished(self.stepper.config):
            yield self._epoch()
        # A signal after the last step has no step to follow it.
        asked = torch.tensor([self.interruption.error is not None], dtype=torch.float64)
        if float(self.stepper.strategy.world.sum(asked.to(self.stepper.strategy.world.device))):
            raise (self.interruption.error or Interrupted)("the last epoch")

    def best(self) -> EpochRecord | None:
        """Return the epoch whose weights are kept, if there is one yet."""
        return best_of([record for record in self.progress.history if record.epoch >= self.first_kept_epoch])

    def title(self, epoch: int) -> str:
        """Return what messages call an epoch."""
        return f"{self.stepper.option_prefix.replace('-', ' ')}epoch {epoch}/{self.stepper.config.epochs}"

    def validate(self) -> tuple[float, float]:
        """Return mean cross entropy and accuracy of the weights that count, in eval mode, on the validation split."""
        stepper, strategy = self.stepper, self.stepper.strategy
        images, labels = self.validation
        stepper.network.eval()
        how = Pass(cross_entropy(), torch.ones((), device=strategy.world.device), stepper.autocast)
        total = torch.zeros(2, dtype=torch.float64, device=strategy.world.device)
        with stepper.average.applied(stepper.network):
            network = self.validated(stepper.network)
            for start in range(0, len(images), EVALUATION_BATCH_SIZE):
                whole = torch.arange(start, min(start + EVALUATION_BATCH_SIZE, len(images)))
                part = torch.tensor_split(whole, strategy.num_shards)[strategy.shard]
                pixels, targets = stepper.inputs.pixels(images[part]), stepper.inputs.labels(labels[part])
                total += torch.stack(strategy.evaluate(network, pixels, targets, how))
        loss, num_correct = strategy.world.sum(total).tolist()
        return loss / len(images), int(num_correct) / len(images)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the rest of the training depends on, as tensors and plain values; every process must call."""
        stepper, strategy = self.stepper, self.stepper.strategy
        return {
            "progress": asdict(self.progress),
            "kept": self.kept,
            "average": stepper.average.state_dict(stepper.network, strategy),
            "network": strategy.state_dict(stepper.network),
            "optimizer": strategy.optimizer_state(stepper.network, stepper.optimizer),
            "schedule": stepper.schedule.state_dict(),
            "scaler": stepper.scaler.state_dict(),
            "source": self.source.state_dict(),
            "random": strategy.world.gather(random_state()),
        }

    def load_state_dict(self, state: dict[str, Any], seed: int) -> None:
        """Take up what state_dict returned.

        Random generators go on on the ranks that there were; others begin with the seed.
        """
        stepper, strategy = self.stepper, self.stepper.strategy
        history = [EpochRecord(**record) for record in state["progress"]["history"]]
        self.progress = Progress(**{**state["progress"], "history": history})
        self.kept = state["kept"]
        if state["average"]:
            stepper.average.load_state_dict(stepper.network, strategy, state["average"])
        strategy.load_state_dict(stepper.network, state["network"])
        strategy.load_optimizer_state(stepper.network, stepper.optimizer, state["optimizer"])
        stepper.schedule.load_state_dict(state["schedule"])
        stepper.scaler.load_state_dict(state["scaler"])
        self.source.load_state_dict(state["source"])
        if strategy.world.rank < len(state["random"]):
            set_random_state(state["random"][strategy.world.rank])
        else:
            seed_all(seed + strategy.world.rank)

    def _epoch(self) -> EpochRecord:
        stepper, progress = self.stepper, self.progress
        with self._timed():
            if progress.epoch_learning_rate is None:
                progress.epoch_learning_rate = float(stepper.schedule.get_last_lr()[0])
            self._train()
            loss, accuracy = self.validate()
        if not math.isfinite(loss):
            raise NonFiniteLossError(f"the validation loss became {loss} after epoch {progress.epoch}")
        record = EpochRecord(
            epoch=progress.epoch,
            learning_rate=progress.epoch_learning_rate,
            train_loss=progress.mean_loss,
            train_accuracy=progress.accuracy,
            validation_loss=loss,
            validation_accuracy=accuracy,
            seconds=progress.epoch_seconds,
        )
        self.progress = Progress(record.epoch + 1, progress.num_steps, history=[*progress.history, record])
        if record is self.best():
            with stepper.average.applied(stepper.network):
                self.kept = stepper.strategy.state_dict(stepper.network)
        return record

    def _train(self) -> None:
        """Take the rest of the source's epoch."""
        stepper, progress, config = self.stepper, self.progress, self.stepper.config
        stepper.network.train()
        steps_per_epoch = num_steps(self.source, config.accumulation)
        num_left = self.source.num_batches() - progress.epoch_steps * config.accumulation
        title = self.title(progress.epoch)
        # disable=None: the bar is for terminals, a log gets one line per epoch.
        hidden = None if stepper.strategy.world.is_main else True
        with tqdm(
            grouped(self.source, config.accumulation, num_left),
            total=steps_per_epoch,
            initial=progress.epoch_steps,
            desc=title,
            disable=hidden,
            leave=False,
        ) as bar:
            for batches in bar:
                place = f"{title}, step {progress.epoch_steps + 1} of {steps_per_epoch}"
                self.before_step(progress.num_steps)
                result = stepper.step(batches, place, stop_asked=lambda: self.interruption.error is not None)
                progress.take(result)
                means = {"loss": progress.mean_loss, "accuracy": progress.accuracy}
                bar.set_postfix({name: f"{value:.4f}" for name, value in means.items()}, refresh=False)
                self.after_step(progress.num_steps)
                if result.stop:
                    raise (self.interruption.error or Interrupted)(place)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start, before = time.perf_counter(), self.progress.epoch_seconds
        try:
            yield
        finally:
            self.progress.epoch_seconds = before + time.perf_counter() - start


def num_steps(source: BatchSource, accumulation: int) -> int:
    """Return the number of steps of an epoch."""
    return -(-source.num_batches() // accumulation)


def grouped(items: Iterable[Item], size: int, num_items: int) -> Iterator[list[Item]]:
    """Give lists of so many items, the last one shorter.

    No item beyond the last is asked for before its list was used: the source would be in its next epoch by then.
    """
    iterator = iter(items)
    while group := list(islice(iterator, min(size, max(1, num_items)))):
        num_items -= len(group)
        yield group
