"""What the epochs of a run did, and which of them is the best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch did; losses are means over images, training figures are of augmented images."""

    epoch: int
    learning_rate: float
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float
    seconds: float


def merit(epoch: EpochRecord) -> tuple[float, float]:
    """Return what epochs are ranked by, the larger the better: accuracy, among equals loss."""
    return epoch.validation_accuracy, -epoch.validation_loss


def best_of(history: Sequence[EpochRecord]) -> EpochRecord | None:
    """Return the epoch whose weights are kept, the first among equals; None of an empty history."""
    return max(history, key=merit, default=None)


OnEpoch = Callable[[EpochRecord], None]


class Follower(Protocol):
    """Is told of a training, in the process that has its epochs; what it raises ends the training."""

    def begin(self) -> None:
        """Training begins: there is nothing left that could be refused."""

    def epoch(self, record: EpochRecord) -> None:
        """One more epoch is over; a resumed training may tell one again."""


class NoTrackers:
    """Whom training tells where nobody follows it."""

    def begin(self) -> None:
        """Do nothing."""

    def epoch(self, record: EpochRecord) -> None:
        """Do nothing."""
