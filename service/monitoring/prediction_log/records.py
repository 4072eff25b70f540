"""The records of the prediction log, its protocol, and the log that is off."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.backend import ItemError, Target

Images = Sequence[bytes | ItemError]


@dataclass(slots=True, eq=False)
class Answered:
    """An answered request."""

    at: float  # seconds since 1970
    answer_id: str
    target: Target
    classes: Sequence[str]
    results: Sequence[object]  # one for each image; only a Ranking becomes a row
    seconds: float  # from the request to its answer
    images: Images  # as the client sent them; empty unless the log keeps inputs


@dataclass(slots=True, eq=False)
class Labelled:
    """A true label that a client sent for one image of an answer."""

    at: float  # seconds since 1970
    answer_id: str
    item: int
    target: Target
    predicted: str
    label: str


class PredictionLog(Protocol):
    """Records answers and labels. Its failures never affect the caller."""

    @property
    def keeps_inputs(self) -> bool:
        """Return whether `answered` needs the images."""

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
        """Record one request, which took `seconds`; `images` are its inputs if the log keeps them."""

    def labelled(self, answer_id: str, item: int, target: Target, predicted: str, label: str) -> None:
        """Record the true label of one image of an answer."""

    def close(self) -> None:
        """Write the buffer and stop. Blocks."""


class NoLog:
    """The log that is off."""

    keeps_inputs = False

    def start(self) -> None:
        """Do nothing."""

    def answered(self, *_: object, **__: object) -> None:
        """Do nothing."""

    def labelled(self, *_: object, **__: object) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
