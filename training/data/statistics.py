"""Mean and deviation of each channel, from counts of the 256 values: exact, and without a float copy of the images."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def count_values(images: Iterable[NDArray[np.uint8]], num_channels: int) -> NDArray[np.int64]:
    """Return how often each channel has each value, [C, 256], in uint8 images [C, H, W]."""
    counts = np.zeros((num_channels, 256), np.int64)
    for image in images:
        for channel in range(num_channels):
            counts[channel] += np.bincount(image[channel].ravel(), minlength=256)
    return counts


def channel_statistics(counts: NDArray[np.int64]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel on a scale of 0 to 1, from counts [C, 256].

    A channel without contrast gets the deviation 1, so that dividing by it changes nothing.
    """
    values = np.arange(256) / 255
    means, deviations = [], []
    for channel in counts:
        mean = float(channel @ values / channel.sum())
        deviation = float(np.sqrt(channel @ (values - mean) ** 2 / channel.sum()))
        means.append(mean)
        deviations.append(deviation or 1.0)
    return means, deviations
