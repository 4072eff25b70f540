"""From where images lie to the device that trains: by this process, or ahead of it by workers."""

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from training.errors import LoaderError
from training.options.config import LoaderConfig
from training.options.execution import check_pinning

TIMEOUT_SECONDS = 300  # for one chunk or batch, from a disk however slow


class Transfer:
    """Brings tensors to a device, from page-locked memory where asked: such copies do not hold the process up.

    What the DataLoader has locked already is not copied again.
    """

    def __init__(self, device: torch.device, *, pin_memory: bool) -> None:
        check_pinning(device, pin_memory=pin_memory)
        self.device = device
        self.pin_memory = pin_memory

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the device; the copy may still be under way, which later work there waits for."""
        if self.pin_memory:
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)


class ArrayRows(Dataset[tuple[Tensor, Tensor]]):
    """Map-style: the images and labels of a list of indices."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __getitem__(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Return images [n, C, H, W] and labels [n]."""
        index = torch.tensor(rows, dtype=torch.int64)
        return self.images[index], self.labels[index]


def fetch(
    images: Tensor, labels: Tensor, batches: Sequence[Tensor], config: LoaderConfig
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return images and labels of each batch of indices in turn; the workers change when they are read, not which."""
    if not config.workers:
        for rows in batches:
            yield images[rows], labels[rows]
        return
    dataset = ArrayRows(images, labels)
    yield from load_batches(dataset, config, sampler=[rows.tolist() for rows in batches], pin_memory=config.pin_memory)


def load_batches(
    dataset: Dataset[Any], config: LoaderConfig, *, timeout_seconds: float = TIMEOUT_SECONDS, **options: Any
) -> Iterator[Any]:
    """Return what a DataLoader with these workers makes of the dataset, each item a batch already.

    Raises LoaderError if a worker dies, or is waited for that long.
    """
    try:
        with warnings.catch_warnings():
            # More workers than cores are the caller's to choose, who reads from a slow disk, say.
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            loader = iter(
                DataLoader(
                    dataset,
                    batch_size=None,
                    num_workers=config.workers,
                    timeout=timeout_seconds if config.workers else 0,
                    prefetch_factor=config.prefetch,
                    # Its seeds are of no use here, and drawn from the global generator would change what follows.
                    generator=torch.Generator(),
                    worker_init_fn=_leave_group,
                    **options,
                )
            )
        yield from loader
    except RuntimeError as error:
        if "DataLoader timed out" in str(error):
            raise LoaderError(
                f"the workers that read images gave none for {timeout_seconds:g} seconds; "
                "--workers 0 reads them in the training process itself"
            ) from error
        if "DataLoader worker" not in str(error):
            raise
        raise LoaderError(f"a worker that reads images died: {str(error).splitlines()[0]}") from error


def _leave_group(_: int) -> None:
    """Keep signals to the trainer's process group from this worker: the trainer ends it, after its last step."""
    os.setpgid(0, 0)
