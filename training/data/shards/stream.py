"""Training images straight from tar shards, an epoch at a time, with a place that can be taken up again."""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.utils.data import IterableDataset, get_worker_info

from training.data.augment import random_affine, warp
from training.data.batches import Batch, check_shards
from training.data.dataset import Dataset
from training.data.decode import decode_image
from training.data.shards.plan import Part, Positions, Segment, epoch_segment, rest
from training.data.shards.tar import Shard, read_sample, samples
from training.data.to_device import load_batches
from training.errors import DataError
from training.options.config import AugmentConfig, LoaderConfig

SHUFFLE_BUFFER = 1000


@dataclass(frozen=True)
class Encoded:
    """An image as its shard holds it."""

    name: str
    content: bytes
    label: int


class ShardStream(IterableDataset[tuple[Tensor, Tensor] | DataError]):
    """Iterable-style, without a length: each worker reads its positions of a row of shards in sequence.

    It gives chunks of images uint8 [n, C, H, W] and labels int64 [n]. An error comes as the last item: raised in a
    worker it would arrive with that process's traceback.
    """

    def __init__(self, dataset: Dataset, shards: Sequence[Shard], chunks: Sequence[Sequence[Positions]]) -> None:
        self.dataset = dataset
        self.shards = shards
        self.chunks = chunks

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor] | DataError]:
        """Read the positions of the worker that this is."""
        worker = get_worker_info()
        chunks = self.chunks[0 if worker is None else worker.id]
        arrivals = self._read(np.sort(np.concatenate(chunks)).tolist() if chunks else [])
        held: dict[int, Encoded] = {}  # never more than the shuffle buffer and a chunk
        try:
            for chunk in chunks:
                images, labels = [], []
                for position in chunk.tolist():
                    while position not in held:
                        arrived, encoded = next(arrivals)
                        held[arrived] = encoded
                    images.append(self._decode(held[position]))
                    labels.append(held.pop(position).label)
                yield torch.from_numpy(np.stack(images)), torch.tensor(labels)
        except DataError as error:
            yield error

    def _read(self, positions: list[int]) -> Iterator[tuple[int, Encoded]]:
        """Return what lies at rising positions."""
        root = Path(self.dataset.stream.folder) if self.dataset.stream else Path()
        left_out = frozenset(self.dataset.left_out)
        wanted, first = iter(positions), 0
        position = next(wanted, None)
        for shard in self.shards:
            if position is None:
                return
            last, here = first + shard.num_samples, first
            if position < last:
                path = root / shard.name
                with _open(path, shard) as file:
                    for sample in samples(path):
                        if f"{shard.name}/{sample.name}" in left_out:
                            continue
                        if here == position:
                            content = read_sample(file, sample)
                            yield position, Encoded(f"{shard.name}/{sample.name}", content, sample.label)
                            position = next(wanted, None)
                            if position is None:
                                return
                        here += 1
                        if position >= last:
                            break
                    else:
                        raise DataError(f"{path} has other images than when it was prepared; prepare again")
            first = last

    def _decode(self, encoded: Encoded) -> NDArray[np.uint8]:
        return self.dataset.image_shape.pixels(decode_image(encoded.content, encoded.name))


class StreamBatches:
    """Batches of one rank, each image once an epoch over all ranks, whatever the numbers of shards and workers.

    All ranks take the same number of batches. `augment` draws from the seed, the epoch, the rank and the batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int,
        augment: AugmentConfig,
        seed: int,
        shard: int = 0,
        num_shards: int = 1,
        loader: LoaderConfig | None = None,
        device: torch.device | None = None,
    ) -> None:
        assert dataset.stream is not None, "arrays are read by ArrayBatches"
        check_shards(batch_size, num_shards)
        loader = loader or LoaderConfig()
        self.dataset = dataset
        self.shards = dataset.stream.shards
        self.batch_size = batch_size
        self.augment = augment
        self.seed = seed
        self.rank = shard
        self.num_ranks = num_shards
        self.loader = loader
        self.device = device or torch.device("cpu")
        self.epoch = 0
        self.parts: list[Part] = []

    def num_batches(self) -> int:
        """Return the number of batches of a whole epoch: prepare has counted the images."""
        return len(self._segment([])[0].ends)

    def __iter__(self) -> Iterator[Batch]:
        """Give the rest of the epoch, or all of the next."""
        segment, done = self._segment(self.parts)
        # Another number of ranks or workers begins a new part of the epoch.
        earlier = self.parts[:-1] if done else self.parts
        ends = segment.ends
        mine = np.diff(ends[:, self.rank], prepend=0).tolist()
        whole = np.diff(ends.sum(axis=1), prepend=0).tolist()
        chunks = rest(segment.orders(self.rank), sum(mine[:done]))
        images, labels = self._empty()
        arrivals = self._chunks(chunks)
        for number in range(done, len(ends)):
            while len(images) < mine[number]:
                more_images, more_labels = next(arrivals)
                images, labels = torch.cat([images, more_images]), torch.cat([labels, more_labels])
            batch, images = images[: mine[number]], images[mine[number] :]
            targets, labels = labels[: mine[number]], labels[mine[number] :]
            self.parts = [*earlier, Part(self.num_ranks, self._num_readers(), number + 1)]
            yield Batch(self._augmented(batch, len(earlier), number), targets.to(self.device), whole[number])
        self.epoch, self.parts = self.epoch + 1, []

    def state_dict(self) -> dict[str, Any]:
        """Return the place: the epoch, and who took how many batches of it."""
        return {"epoch": self.epoch, "parts": [list(astuple(part)) for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a place, with as many ranks and workers or others."""
        self.epoch, self.parts = state["epoch"], [Part(*part) for part in state["parts"]]

    def _num_readers(self) -> int:
        return max(1, self.loader.workers)

    def _segment(self, parts: Sequence[Part]) -> tuple[Segment, int]:
        return epoch_segment(
            sum(shard.num_samples for shard in self.shards),
            parts,
            num_ranks=self.num_ranks,
            num_workers=self._num_readers(),
            batch_size=self.batch_size,
            shuffle_buffer=self.loader.shuffle_buffer or SHUFFLE_BUFFER,
            seed=f"{self.seed}/{self.epoch}",
        )

    def _chunks(self, chunks: Sequence[Sequence[Positions]]) -> Iterator[tuple[Tensor, Tensor]]:
        shards = list(self.shards)
        Random(f"{self.seed}/{self.epoch}").shuffle(shards)
        for item in load_batches(ShardStream(self.dataset, shards, chunks), self.loader):
            if isinstance(item, DataError):
                raise item
            yield item

    def _augmented(self, images: Tensor, part: int, number: int) -> Tensor:
        entropy = np.random.SeedSequence([self.seed, self.epoch, self.rank, part, number])
        generator = Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))
        moves = random_affine(len(images), images.shape[2:], self.augment, generator)
        return warp(images.to(self.device), moves.to(self.device))

    def _empty(self) -> tuple[Tensor, Tensor]:
        return torch.empty((0, *self.dataset.image_shape.array), dtype=torch.uint8), torch.empty(0, dtype=torch.int64)


def _open(path: Path, shard: Shard) -> BinaryIO:
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; the run streams its training images") from error
    if path.stat().st_size != shard.num_bytes:
        file.close()
        raise DataError(f"{path} has other images than when it was prepared; prepare again")
    return file
