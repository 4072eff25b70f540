"""The verb that turns images of any kind into arrays of one shape."""

import numpy as np

from training.artifacts import SPLITS, Run, Split, write_json
from training.data.broken import report_broken
from training.data.dataset import Dataset, new_images, save_labels
from training.data.decode import ImageShape
from training.data.shards.prepare import prepare_stream
from training.data.sources.labelled import LabelledImages
from training.data.sources.open_source import is_streamed, open_source
from training.data.split import stratified_split
from training.data.statistics import channel_statistics, count_values
from training.errors import DataError
from training.options.config import DataConfig
from training.progress import progress


def prepare(run: Run, config: DataConfig) -> None:
    """Leave the images of each split as arrays in the run, their sidecar last.

    Of tar shards, the training images stay where they are. Raises DataError naming the bad files.
    """
    run.dataset.parent.mkdir(parents=True, exist_ok=True)
    dataset = prepare_stream(run, config) if is_streamed(config.data) else _prepare_arrays(run, config)
    write_json(run.dataset, dataset)
    counts = ", ".join(f"{count} {name}" for name, count in dataset.num_samples.items())
    print(f"{dataset.source}: {len(dataset.classes)} classes; {counts}")


def _prepare_arrays(run: Run, config: DataConfig) -> Dataset:
    source, shape = open_source(config.data), ImageShape(config.channels, config.height, config.width)
    split = stratified_split(source.labels, source.keys, source.test)
    broken: dict[int, str] = {}
    for name in SPLITS:
        broken |= _write_images(run, name, split[name], source, shape)
    left_out = {source.keys[index]: reason for index, reason in sorted(broken.items())}
    report_broken(left_out, config.broken)
    if broken:
        # The others are split again, as if the broken images had never been in the folder.
        kept = [index for index in range(len(source.keys)) if index not in broken]
        decoded, source = split, source.without(broken)
        split = stratified_split(source.labels, source.keys, source.test)
        _rearrange(run, shape, decoded, {name: [kept[index] for index in split[name]] for name in SPLITS})
    for name in SPLITS:
        save_labels(run, name, [source.labels[index] for index in split[name]])
    images = np.load(run.images("train"), mmap_mode="r")
    mean, std = channel_statistics(count_values(images, config.channels))
    return Dataset(
        source=source.description,
        classes=source.classes,
        channels=config.channels,
        height=config.height,
        width=config.width,
        mean=mean,
        std=std,
        num_samples={name: len(split[name]) for name in SPLITS},
        preprocessing=shape.preprocessing,
        left_out=sorted(left_out),
    )


def _write_images(
    run: Run, name: Split, indices: list[int], source: LabelledImages, shape: ImageShape
) -> dict[int, str]:
    """Leave these images as an array; return those that are broken, each with the reason."""
    broken: dict[int, str] = {}
    images = new_images(run.images(name), len(indices), shape)
    for row, index in enumerate(progress(indices, f"decode {name}", "images")):
        try:
            images[row] = shape.pixels(source.load(index))
        except DataError as error:
            broken[index] = str(error)
    images.flush()
    return broken


def _rearrange(run: Run, shape: ImageShape, before: dict[Split, list[int]], after: dict[Split, list[int]]) -> None:
    """Bring the images from one split into another: to copy is much faster than to decode again."""
    places = {index: (name, row) for name in SPLITS for row, index in enumerate(before[name])}
    decoded = {name: np.load(run.images(name), mmap_mode="r") for name in SPLITS}
    hidden = {name: run.images(name).with_suffix(".kept.npy") for name in SPLITS}
    for name in SPLITS:
        images = new_images(hidden[name], len(after[name]), shape)
        for row, index in enumerate(after[name]):
            old, place = places[index]
            images[row] = decoded[old][place]
        images.flush()
    for name in SPLITS:
        hidden[name].replace(run.images(name))
