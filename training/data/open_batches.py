"""Where a run's training images come from: its arrays, or the shards that it was prepared of."""

from typing import Any

import torch

from training.artifacts import Run
from training.data.batches import ArrayBatches
from training.data.dataset import Dataset, load_split
from training.data.shards.stream import StreamBatches
from training.options.config import TrainConfig


def open_batches(
    run: Run,
    dataset: Dataset,
    config: TrainConfig,
    *,
    shard: int = 0,
    num_shards: int = 1,
    device: torch.device,
) -> ArrayBatches | StreamBatches:
    """Return the batches of one shard of the training images, on the device.

    Raises SettingError for a setting of the loader that has no meaning there, or a batch too small for its shards.
    """
    config.loader.check_source(is_stream=dataset.stream is not None)
    options: dict[str, Any] = {"batch_size": config.batch_size, "augment": config.augment, "seed": config.seed}
    options |= {"shard": shard, "num_shards": num_shards, "loader": config.loader, "device": device}
    if dataset.stream is not None:
        return StreamBatches(dataset, **options)
    return ArrayBatches(*load_split(run, "train"), **options)
