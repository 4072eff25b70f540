"""How long calls take, on one thread, interleaved so that noise hits all alike."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from training.evaluation.evaluate import Model
from training.evaluation.threads import one_thread
from training.progress import progress

Name = TypeVar("Name", bound=str)

FEWEST_REPEATS, MOST_REPEATS = 5, 60
# TorchScript specialises its graph during the first calls with a shape.
NUM_WARM_UP_CALLS = 3


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one call, on one thread: median and quartiles of repeats that alternate with the others'."""

    batch_size: int
    num_repeats: int
    median_ms: float
    first_quartile_ms: float
    third_quartile_ms: float


def measure_latency(
    models: Mapping[Name, Model], images: Tensor, batch_sizes: Sequence[int], seconds_per_size: float
) -> dict[Name, list[Latency]]:
    """Return each model's latency on batches of uint8 images [N, C, H, W], of each size in turn."""
    latencies: dict[Name, list[Latency]] = {name: [] for name in models}
    with one_thread(), torch.inference_mode():
        for size in progress(batch_sizes, "measure latency", "batch sizes"):
            # A small split is repeated up to the size: time does not depend on what the pixels show.
            batch = images[torch.arange(size) % len(images)]
            warm = [_milliseconds(model, batch) for _ in range(NUM_WARM_UP_CALLS) for model in models.values()]
            affordable = int(seconds_per_size * 1000 / (min(warm) * len(models)))
            num_repeats = max(FEWEST_REPEATS, min(MOST_REPEATS, affordable))
            times: dict[Name, list[float]] = {name: [] for name in models}
            for _ in range(num_repeats):
                for name, model in models.items():
                    times[name].append(_milliseconds(model, batch))
            for name, taken in times.items():
                first, median, third = (float(value) for value in np.percentile(taken, [25, 50, 75]))
                latencies[name].append(Latency(size, num_repeats, median, first, third))
    return latencies


def _milliseconds(model: Model, batch: Tensor) -> float:
    start = time.perf_counter()
    model(batch)
    return (time.perf_counter() - start) * 1000
