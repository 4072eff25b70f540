"""The stage that turns images of any kind into arrays of one shape."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from training.artifacts import SPLITS, Run, Split, write_json
from training.config import DataConfig
from training.data.dataset import Dataset
from training.data.decode import Preprocessing, to_pixels
from training.data.digits import digits
from training.data.folder import folder
from training.data.labelled import LabelledImages
from training.data.split import stratified_split
from training.data.synthetic import synthetic
from training.errors import DataError


def prepare(run: Run, config: DataConfig) -> None:
    """Leave the images of each split as arrays in the run, their sidecar last; raises DataError naming a bad file."""
    source = open_source(config.data)
    split = stratified_split(source.labels, source.keys)
    preprocessing = Preprocessing()
    run.dataset.parent.mkdir(parents=True, exist_ok=True)
    for name in SPLITS:
        _write_split(run, name, indices=split[name], source=source, config=config, preprocessing=preprocessing)
    mean, std = channel_statistics(np.load(run.images("train"), mmap_mode="r"))
    dataset = Dataset(
        source=source.description,
        classes=source.classes,
        channels=config.channels,
        height=config.height,
        width=config.width,
        mean=mean,
        std=std,
        num_samples={name: len(split[name]) for name in SPLITS},
        preprocessing=preprocessing,
    )
    write_json(run.dataset, dataset)
    counts = ", ".join(f"{count} {name}" for name, count in dataset.num_samples.items())
    print(f"{source.description}: {len(source.classes)} classes; {counts}")


def open_source(data: str) -> LabelledImages:
    """Return the built-in images of that name, else those in the folder; raises DataError if it is not usable."""
    match data:
        case "digits":
            return digits()
        case "synthetic":
            return synthetic()
        case _:
            return folder(Path(data))


def channel_statistics(images: NDArray[np.uint8]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel of uint8 [N, C, H, W], on a scale of 0 to 1.

    A channel without contrast gets the deviation 1, so that dividing by it changes nothing.
    """
    num_channels = images.shape[1]
    # Counts of the 256 values are exact, and need no float copy of the images.
    values = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(num_channels):
        counts = np.zeros(256)
        for image in images[:, channel]:
            counts += np.bincount(image.ravel(), minlength=256)
        mean = float(counts @ values / counts.sum())
        deviation = float(np.sqrt(counts @ (values - mean) ** 2 / counts.sum()))
        means.append(mean)
        deviations.append(deviation or 1.0)
    return means, deviations


def _write_split(
    run: Run,
    name: Split,
    *,
    indices: list[int],
    source: LabelledImages,
    config: DataConfig,
    preprocessing: Preprocessing,
) -> None:
    shape = (len(indices), config.channels, config.height, config.width)
    # Written in place, image by image: a folder may be larger than the memory.
    images = np.lib.format.open_memmap(run.images(name), mode="w+", dtype=np.uint8, shape=shape)
    for row, index in enumerate(tqdm(indices, desc=f"decode {name}", unit="image", disable=None, leave=False)):
        image = source.load(index)
        try:
            images[row] = to_pixels(
                image,
                channels=config.channels,
                height=config.height,
                width=config.width,
                preprocessing=preprocessing,
            )
        except DataError as error:
            raise DataError(f"{source.keys[index]}: {error}") from error
    images.flush()
    np.save(run.labels(name), np.array([source.labels[index] for index in indices], dtype=np.int64))
