"""The training images of an epoch in their order, a batch at a time, each process its shard."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from training.data.augment import random_affine, warp
from training.data.sampler import draw_order
from training.data.to_device import Transfer, fetch
from training.errors import SettingError
from training.options.config import AugmentConfig, LoaderConfig


@dataclass(frozen=True)
class Batch:
    """This process's shard of a batch; it may be empty where a batch has fewer images than there are shards."""

    images: Tensor
    """Float32 [n, C, H, W], 0 to 255, augmented."""
    labels: Tensor
    """Int64 [n]."""
    num_images: int
    """Of the whole batch, over all shards."""


class BatchSource(Protocol):
    """Where the training loop takes its batches from. It knows how far it is, and can go on from there."""

    def num_batches(self) -> int:
        """Return the number of batches of a whole epoch, whatever the number of shards."""

    def __iter__(self) -> Iterator[Batch]:
        """Go on with the epoch that was begun; with the next one, in a new order, where the last one was finished."""

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the batch that was given last: plain values and tensors.

        Everything in it holds whatever the number of shards: those who resume may be more, or fewer.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the place that `state_dict` returned."""


class ArrayBatches:
    """Batches of arrays in memory or mapped into it: the fastest way for images that were prepared.

    All processes draw the same order and the same changes to images, for whole batches, and take their shards: the
    images of an epoch do not depend on the number of processes.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        batch_size: int,
        augment: AugmentConfig,
        seed: int,
        shard: int = 0,
        num_shards: int = 1,
        loader: LoaderConfig | None = None,
        device: torch.device | None = None,
    ) -> None:
        check_shards(batch_size, num_shards)
        self.images = images
        self.labels = labels
        self.batch_size = batch_size
        self.augment = augment
        self.shard = shard
        self.num_shards = num_shards
        self.loader = loader or LoaderConfig()
        self.to_device = Transfer(device or torch.device("cpu"), pin_memory=self.loader.pin_memory)
        self.generator = Generator().manual_seed(seed)
        self.position = 0  # images of this epoch that were given, over all shards
        self.before_order = self.generator.get_state()

    def num_batches(self) -> int:
        """Return the number of batches of a whole epoch."""
        return len(self._bounds())

    def __iter__(self) -> Iterator[Batch]:
        """Give the rest of the epoch, or all of the next."""
        if self.position == 0:
            self.before_order = self.generator.get_state()
            order = draw_order(self.labels, self.loader.sampler, self.generator)
        else:
            order = draw_order(self.labels, self.loader.sampler, Generator().set_state(self.before_order))
        bounds = [each for each in self._bounds() if each[0] >= self.position]
        shares = [torch.tensor_split(torch.arange(stop - start), self.num_shards)[self.shard] for start, stop in bounds]
        rows = [order[start:stop][mine] for (start, stop), mine in zip(bounds, shares, strict=True)]
        fetched = fetch(self.images, self.labels, rows, self.loader)
        for (start, stop), mine, (images, labels) in zip(bounds, shares, fetched, strict=True):
            moves = random_affine(stop - start, self.images.shape[2:], self.augment, self.generator)
            placed, targets, shifts = (self.to_device(each) for each in (images, labels, moves[mine]))
            self.position = stop
            yield Batch(warp(placed, shifts), targets, num_images=stop - start)
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the place: images of the epoch that were given, and the generator then and before the order."""
        return {
            "position": self.position,
            "generator": self.generator.get_state(),
            "before_order": self.before_order,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a place."""
        self.position = state["position"]
        self.generator.set_state(state["generator"])
        self.before_order = state["before_order"]

    def _bounds(self) -> list[tuple[int, int]]:
        return batch_bounds(len(self.images), self.batch_size)


def batch_bounds(num_images: int, batch_size: int) -> list[tuple[int, int]]:
    """Return [start, stop) of each batch; a last batch of less than half the size joins its predecessor.

    Batch norm cannot use a single image, and no shard may be left with one. The number of shards has no say: it may
    change in mid-epoch, and the places of batches and the number of steps stay.
    """
    starts = list(range(0, num_images, batch_size))
    if len(starts) > 1 and num_images - starts[-1] < _least(batch_size):
        starts.pop()
    return list(zip(starts, [*starts[1:], num_images], strict=True)) if starts else []


def check_shards(batch_size: int, num_shards: int) -> None:
    """Raise SettingError unless each shard of the smallest last batch has two images."""
    if _least(batch_size) < 2 * num_shards:
        raise SettingError(
            f"--batch-size is {batch_size}, and {num_shards} processes share each batch; "
            f"allowed is {4 * num_shards} or more"
        )


def _least(batch_size: int) -> int:
    return max(2, batch_size // 2)
