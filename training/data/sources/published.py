"""Arrays of pixels that were published in a training and a test split."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from training.data.sources.labelled import LabelledImages
from training.data.split import LEAST_PER_CLASS
from training.errors import DataError

Labelled = tuple[NDArray[np.uint8], NDArray[np.integer]]  # [N, H, W] or [N, H, W, 3], and [N]


def published(name: str, classes: Mapping[int, str], train: Labelled, test: Labelled) -> LabelledImages:
    """Return both splits as one source that knows which of its images are for testing; labels are keys of `classes`.

    Raises DataError for a label without a class, or a class with too few images.
    """
    pixels = (train[0], test[0])
    published_labels = [int(label) for part in (train, test) for label in part[1]]
    unknown = sorted(set(published_labels) - classes.keys())
    if unknown:
        raise DataError(f"--data: {name}: label {unknown[0]} has no class; there are {len(classes)}")
    positions = {label: position for position, label in enumerate(sorted(classes))}
    num_train = len(train[1])
    if not len(test[1]):
        raise DataError(f"--data: {name}: the test split is empty")
    counts = Counter(published_labels[:num_train])
    for label, class_name in classes.items():
        if counts[label] < LEAST_PER_CLASS - 1:
            raise DataError(
                f"--data: {name}: class {class_name} has {counts[label]} training images; "
                f"at least {LEAST_PER_CLASS - 1} are needed, one each to train and to validate"
            )

    def load(index: int) -> Image.Image:
        part, position = (0, index) if index < num_train else (1, index - num_train)
        return Image.fromarray(pixels[part][position])

    return LabelledImages(
        description=f"{len(published_labels):,} {name}",
        classes=[classes[label] for label in sorted(classes)],
        labels=[positions[label] for label in published_labels],
        keys=[
            *(f"train-{index}" for index in range(num_train)),
            *(f"test-{index}" for index in range(len(test[1]))),
        ],
        load=load,
        test=frozenset(range(num_train, len(published_labels))),
    )
