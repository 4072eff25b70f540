"""Tar shards of images that say their number, and a reader that tells which numbers it was given."""

import io
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from training.data.dataset import Dataset
from training.data.shards.stream import StreamBatches
from training.options.config import AugmentConfig, LoaderConfig

NUM_IMAGES = {"train": 403, "validation": 8, "test": 9}
SIDE = 4


def numbered(number: int) -> bytes:
    """An image that says its number: its first pixel counts 256s, the others ones."""
    pixels = np.full((SIDE, SIDE), number % 256, np.uint8)
    pixels[0, 0] = number // 256
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write_shard(path: Path, numbers: list[int], break_at: int | None = None) -> None:
    with tarfile.open(path, "w") as archive:
        for number in numbers:
            files = {
                "png": b"no image" if number == break_at else numbered(number),
                "cls": str(number % 2).encode(),
            }
            for suffix, content in files.items():
                member = tarfile.TarInfo(f"deep/{number:06d}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_shards(root: Path) -> None:
    """As another program would write them: no index, shards of very different sizes, more readers than shards."""
    for name, numbers in {
        "train-0": range(2),
        "train-1": range(2, 300),
        "train-2": range(300, 403),
        "val-0": range(8),
        "test-0": range(9),
    }.items():
        write_shard(root / f"{name}.tar", list(numbers))


def source(
    dataset: Dataset, rank: int = 0, num_ranks: int = 1, workers: int = 0, batch_size: int = 20
) -> StreamBatches:
    return StreamBatches(
        dataset, batch_size=batch_size, augment=AugmentConfig(), seed=0, shard=rank, num_shards=num_ranks,
        loader=LoaderConfig(workers=workers, shuffle_buffer=40),
    )  # fmt: skip


def numbers_of(images: torch.Tensor) -> list[int]:
    pixels = images[:, 0].round().long()
    return (pixels[:, 0, 0] * 256 + pixels[:, -1, -1]).tolist()


def take(batches: StreamBatches, num_batches: int | None = None) -> list[list[int]]:
    """The numbers of the images of each batch."""
    taken = []
    for batch in batches:
        numbers = numbers_of(batch.images)
        assert batch.labels.tolist() == [number % 2 for number in numbers]
        taken.append(numbers)
        if len(taken) == num_batches:
            break
    return taken


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]
