"""What a run needs of tar shards before it trains: arrays to validate and test on, counts and statistics of the rest.

The training images are decoded once, here, to count and check them; they stay in their shards, and each epoch streams
them from there.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from training.artifacts import SPLITS, Run, Split, storing
from training.data.broken import report_broken
from training.data.dataset import Dataset, Stream, new_images, save_labels
from training.data.decode import ImageShape, decode_image
from training.data.shards.tar import Sample, Shard, ShardFolder, open_shards, read_sample, samples
from training.data.statistics import channel_statistics, count_values
from training.errors import DataError
from training.options.config import DataConfig

MOST_SAMPLED = 1024
"""Training images of which the run keeps arrays: to calibrate and to look at, not to train on."""


@dataclass
class Found:
    """What reading the shards of one split found."""

    num_samples: Counter[str] = field(default_factory=Counter)
    """Usable ones, by the name of their shard."""
    num_of_label: Counter[int] = field(default_factory=Counter)
    broken: dict[str, str] = field(default_factory=dict)
    """The reason, by the names of shard and image."""


def prepare_stream(run: Run, config: DataConfig) -> Dataset:
    """Leave the validation and test images, and a sample of the training images, as arrays; return what is known.

    Raises DataError for shards that cannot be read, a class that a split lacks, and, unless they are to be skipped,
    images that cannot be read.
    """
    folder, shape = open_shards(Path(config.data)), ImageShape(config.channels, config.height, config.width)
    totals: dict[Split, int] = {split: _count(folder, split) for split in SPLITS}
    if not totals["train"]:
        raise DataError(f"--data: the train shards of {folder.root} are empty")
    found: dict[Split, Found] = {"train": Found(), "validation": Found(), "test": Found()}
    for split in ("validation", "test"):
        _write(run, split, _images(folder, split, totals[split], shape, found[split]), totals[split], shape)
    counts = count_values(_sampled(run, folder, totals["train"], shape, found["train"]), shape.channels)
    broken = {name: reason for each in found.values() for name, reason in each.broken.items()}
    report_broken(broken, config.broken)
    classes = _classes(folder, found)
    mean, std = channel_statistics(counts)
    num_samples = {split: each.num_samples.total() for split, each in found.items()}
    return Dataset(
        source=f"{sum(num_samples.values())} images in the shards of {folder.root.resolve().name}",
        classes=classes,
        channels=config.channels,
        height=config.height,
        width=config.width,
        mean=mean,
        std=std,
        num_samples=num_samples,
        preprocessing=shape.preprocessing,
        left_out=sorted(broken),
        stream=Stream(
            str(folder.root.resolve()),
            [
                Shard(path.name, found["train"].num_samples[path.name], path.stat().st_size)
                for path in folder.paths["train"]
            ],
        ),
    )


def _images(
    folder: ShardFolder, split: Split, total: int, shape: ImageShape, found: Found
) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Return the split's usable images, [C, H, W], and labels, shard by shard, and keep account of all."""
    with tqdm(total=total, desc=f"decode {split}", unit="image", disable=None, leave=False) as bar:
        for path in folder.paths[split]:
            num_read = 0
            with path.open("rb") as file:
                for sample in samples(path):
                    bar.update()
                    num_read += 1
                    name = f"{path.name}/{sample.name}"
                    try:
                        pixels = shape.pixels(decode_image(read_sample(file, sample), name))
                    except DataError as error:
                        found.broken[name] = str(error)
                        continue
                    found.num_samples[path.name] += 1
                    found.num_of_label[_checked(sample, folder, name)] += 1
                    yield pixels, sample.label
            expected = folder.num_samples.get(path.name, num_read)
            if num_read != expected:
                raise DataError(f"--data: {path} holds {num_read} images; its index says {expected}")


def _checked(sample: Sample, folder: ShardFolder, name: str) -> int:
    if folder.classes is not None and sample.label >= len(folder.classes):
        raise DataError(f"--data: {name} has label {sample.label}; there are {len(folder.classes)} classes")
    return sample.label


def _count(folder: ShardFolder, split: Split) -> int:
    return sum(sum(1 for _ in samples(path)) for path in folder.paths[split])


def _write(
    run: Run, split: Split, images: Iterator[tuple[NDArray[np.uint8], int]], most: int, shape: ImageShape
) -> None:
    """Leave the images, at most so many, and labels as arrays."""
    rows = new_images(run.images(split), most, shape)
    labels = []
    for row, (pixels, label) in enumerate(images):
        rows[row] = pixels
        labels.append(label)
    rows.flush()
    if len(labels) < most:
        whole = run.images(split).with_suffix(".all.npy")
        run.images(split).rename(whole)
        with storing(run.images(split)):
            np.save(run.images(split), rows[: len(labels)])
        whole.unlink()
    save_labels(run, split, labels)


def _sampled(run: Run, folder: ShardFolder, total: int, shape: ImageShape, found: Found) -> Iterator[NDArray[np.uint8]]:
    """Return all training images, one by one; leave some, from all over the split, as arrays."""
    num_sampled = min(MOST_SAMPLED, total)
    kept: list[tuple[NDArray[np.uint8], int]] = []
    for position, (pixels, label) in enumerate(_images(folder, "train", total, shape, found)):
        if len(kept) < num_sampled and position >= len(kept) * total // num_sampled:
            kept.append((pixels, label))
        yield pixels
    _write(run, "train", iter(kept), len(kept), shape)


def _classes(folder: ShardFolder, found: dict[Split, Found]) -> list[str]:
    labels = {label for each in found.values() for label in each.num_of_label}
    classes = folder.classes or [str(label) for label in range(max(labels, default=-1) + 1)]
    if len(classes) < 2:
        raise DataError(f"--data: the shards of {folder.root} hold {len(classes)} classes; at least two are needed")
    for split, each in found.items():
        for label, name in enumerate(classes):
            if not each.num_of_label[label]:
                raise DataError(f"--data: class {name} has no image in the {split} shards of {folder.root}")
    return classes
