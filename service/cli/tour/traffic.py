"""The tour's callers: they send images whose class is known, and report it."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from torchgate_client import TorchgateError

from service.cli.gateway import CallFailed, Gateway

MOST_IMAGES = 100
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}


@dataclass(frozen=True)
class Example:
    """An image and its true class."""

    image: bytes
    label: str


def read_examples(folder: Path) -> list[Example]:
    """Return the images of a folder; digit-7.png is one of the class 7. Raises CallFailed."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
        found = [Example(path.read_bytes(), path.stem.rpartition("-")[2]) for path in paths[:MOST_IMAGES]]
    except OSError as error:
        raise CallFailed(
            f"the images in {folder} cannot be read: {error.strerror}. Name them with --samples"
        ) from error
    if not found:
        raise CallFailed(f"{folder} holds no image named as digit-7.png is. Name another folder with --samples")
    return found


@dataclass
class Traffic:
    """Sends the examples in turn, `per_second` of them, and reports their classes."""

    gateway: Gateway
    model: str
    examples: list[Example]
    per_second: float
    num_sent: int = 0
    num_failed: int = 0
    num_wrong: dict[str, int] = field(default_factory=dict)  # by version
    num_answers: dict[str, int] = field(default_factory=dict)

    def send(self, seconds: float) -> None:
        """Send for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            started = time.monotonic()
            self._send_one()
            time.sleep(max(0.0, min(left, 1 / self.per_second - (time.monotonic() - started))))

    def _send_one(self) -> None:
        example = self.examples[self.num_sent % len(self.examples)]
        self.num_sent += 1
        try:
            answer = self.gateway.caller.predict(example.image, model=self.model)
            self.num_answers[answer.version] = self.num_answers.get(answer.version, 0) + 1
            is_wrong = answer.label != example.label
            self.num_wrong[answer.version] = self.num_wrong.get(answer.version, 0) + is_wrong
            self.gateway.feedback(answer, example.label)
        except TorchgateError:  # a gateway that is gone is noticed by who looks at the rollout
            self.num_failed += 1
