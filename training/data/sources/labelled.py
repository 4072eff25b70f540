"""What every source of images gives: images that are not decoded yet, and their labels."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from training.data.split import LEAST_PER_CLASS
from training.errors import DataError


@dataclass(frozen=True)
class LabelledImages:
    """Images by index, each with a label (index into `classes`) and a key that stays when its neighbours change."""

    description: str
    classes: list[str]
    labels: list[int]
    keys: list[str]
    load: Callable[[int], Image.Image]
    files: list[Path] | None = None
    """Where each image has a file of its own."""
    test: frozenset[int] | None = None
    """Indices of the test split, where it was published with the images."""

    def without(self, indices: Collection[int]) -> "LabelledImages":
        """Return the others; raises DataError if a class has too few of them left."""
        kept = [index for index in range(len(self.labels)) if index not in indices]
        positions = {index: position for position, index in enumerate(kept)}
        test = None if self.test is None else frozenset(positions[index] for index in self.test & positions.keys())
        others = LabelledImages(
            description=f"{self.description}, {len(indices)} left out",
            classes=self.classes,
            labels=[self.labels[index] for index in kept],
            keys=[self.keys[index] for index in kept],
            load=lambda position: self.load(kept[position]),
            files=None if self.files is None else [self.files[index] for index in kept],
            test=test,
        )
        check_classes(others.classes, others.labels)
        return others


def check_classes(classes: list[str], labels: list[int]) -> None:
    """Raise DataError, naming the class, unless each has an image to train, one to validate and one to test."""
    counts = Counter(labels)
    for label, name in enumerate(classes):
        if counts[label] < LEAST_PER_CLASS:
            raise DataError(
                f"--data: class {name} has {counts[label]} images; "
                f"at least {LEAST_PER_CLASS} are needed, one each to train, to validate and to test"
            )
