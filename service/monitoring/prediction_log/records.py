"""What the prediction log takes, and the log that is off."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.backend import ItemError, Target

Images = Sequence[bytes | ItemError]


@dataclass(slots=True, eq=False)
class Answered:
    """One request that was answered."""

    at: float  # seconds since 1970
    answer_id: str
    target: Target
    classes: Sequence[str]
    results: Sequence[object]  # of each image; those that are no Ranking leave no row
    seconds: float  # that the request took
    images: Images  # as they came; empty where inputs are not logged


@dataclass(slots=True, eq=False)
class Labelled:
    """What somebody says that one image of an answer really is."""

    at: float  # seconds since 1970
    answer_id: str
    item: int
    target: Target
    predicted: str
    label: str


class PredictionLog(Protocol):
    """Takes what was answered; nothing that happens to the log reaches the caller."""

    @property
    def keeps_inputs(self) -> bool:
        """Return whether the images are wanted with the answers."""

    def start(self) -> None:
        """Begin to write."""

    def answered(
        self,
        answer_id: str,
        target: Target,
        classes: Sequence[str],
        results: Sequence[object],
        seconds: float,
        images: Images,
    ) -> None:
        """Take one request that was answered in so many seconds; `images` are its inputs if they are wanted."""

    def labelled(self, answer_id: str, item: int, target: Target, predicted: str, label: str) -> None:
        """Take what one image of an answer really is."""

    def close(self) -> None:
        """Write what was taken, and stop. Blocks."""


class NoLog:
    """The log that is off."""

    keeps_inputs = False

    def start(self) -> None:
        """Do nothing."""

    def answered(
        self,
        answer_id: str,
        target: Target,
        classes: Sequence[str],
        results: Sequence[object],
        seconds: float,
        images: Images,
    ) -> None:
        """Do nothing."""

    def labelled(self, answer_id: str, item: int, target: Target, predicted: str, label: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
