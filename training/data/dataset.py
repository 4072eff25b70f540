"""The prepared images of a run, as the later stages read them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.artifacts import Run, Split, read_json, storing
from training.data.decode import ImageShape, Preprocessing
from training.data.shards.tar import Shard
from training.errors import RunError


@dataclass(frozen=True)
class Stream:
    """Tar shards whose training images are read as they are needed; the run has arrays of a sample of them only."""

    folder: str
    shards: list[Shard]


@dataclass(frozen=True)
class Dataset:
    """What is known of a run's images; `mean` and `std` are of each channel, in the training split, 0 to 1."""

    source: str
    classes: list[str]
    channels: int
    height: int
    width: int
    mean: list[float]
    std: list[float]
    num_samples: dict[Split, int]
    preprocessing: Preprocessing
    left_out: list[str] = field(default_factory=list)
    """Names of the images that could not be read."""
    stream: Stream | None = None
    """Where the training images are, if not in the run's arrays."""

    @property
    def image_shape(self) -> ImageShape:
        """What the images were brought into."""
        return ImageShape(self.channels, self.height, self.width, self.preprocessing)


def new_images(path: Path, num_images: int, shape: ImageShape) -> np.memmap[Any, np.dtype[np.uint8]]:
    """Return a new array [N, C, H, W] in the file at path, to be filled image by image: it may exceed the memory.

    Raises StorageError where the disk has no room for it: found out later, as a page is written, that is SIGBUS.
    """
    with storing(path):
        images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(num_images, *shape.array))
        with path.open("rb+") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return images


def save_labels(run: Run, split: Split, labels: Sequence[int]) -> None:
    """Write the labels of a split; raises StorageError."""
    with storing(run.labels(split)):
        np.save(run.labels(split), np.array(labels, np.int64))


def load_dataset(run: Run) -> Dataset:
    """Return the sidecar of the run's arrays; raises RunError if the data were not prepared."""
    document = read_json(run.dataset, written_by="prepare")
    rules = document.pop("preprocessing")
    preprocessing = Preprocessing(rules["fit"], rules["resample"], tuple(rules["background"]))
    stream = document.pop("stream", None)
    if stream is not None:
        stream = Stream(stream["folder"], [Shard(**shard) for shard in stream["shards"]])
    return Dataset(**document, preprocessing=preprocessing, stream=stream)


def load_split(run: Run, split: Split) -> tuple[Tensor, Tensor]:
    """Return the split's images, uint8 [N, C, H, W], and labels, int64 [N]; pages are read as they are used.

    Of a run that streams, the training split is a sample: enough to calibrate, not to train.
    """
    try:
        # Copy on write: torch wants memory that it may write to, and the file stays as it is.
        images = np.load(run.images(split), mmap_mode="c")
        labels = np.load(run.labels(split))
    except FileNotFoundError as error:
        raise RunError(f"{error.filename} is not there; `python -m training prepare` writes it") from error
    return torch.from_numpy(images), torch.from_numpy(labels)
