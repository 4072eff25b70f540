"""MNIST, Fashion-MNIST and what else is published as idx files (http://yann.lecun.com/exdb/mnist describes them)."""

import gzip
import math
import re
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data.sources.labelled import LabelledImages
from training.data.sources.published import published
from training.errors import DataError

UNSIGNED_BYTES = 0x08
# Both distributions have the same file names, so only the folder's own name can tell what the labels mean.
FASHION = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def has_idx_files(root: Path) -> bool:
    """Tell whether the folder holds training images as an idx file."""
    return _find(root, "train-images", 3) is not None


def idx(root: Path) -> LabelledImages:
    """Return the images of both splits; the published test split (t10k) stays that.

    Classes are called by their numbers, or as Fashion-MNIST calls them if the folder's name has "fashion" in it.
    Raises DataError, naming the file, for one that is missing or not what its header says.
    """
    parts = []
    for split in ("train", "t10k"):
        images = read_idx(_existing(root, f"{split}-images", 3), 3)
        path = _existing(root, f"{split}-labels", 1)
        labels = read_idx(path, 1)
        if len(images) != len(labels):
            raise DataError(f"--data: {path} has {len(labels)} labels for {len(images)} images")
        parts.append((images, labels))
    found = sorted({int(label) for label in parts[0][1]})
    fashion = "fashion" in root.resolve().name.lower() and found == list(range(len(FASHION)))
    (train_images, train_labels), (test_images, test_labels) = parts
    return published(
        name=f"idx images in {root.resolve().name}",
        classes={label: FASHION[label] if fashion else str(label) for label in found},
        train=(train_images, train_labels),
        test=(test_images, test_labels),
    )


def read_idx(path: Path, num_dimensions: int) -> NDArray[np.uint8]:
    """Return the array of an idx file of unsigned bytes, plain or compressed; raises DataError, naming it, else."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"--data: {path} cannot be read: {error}") from error
    num_header_bytes = 4 + 4 * num_dimensions
    if content[:4] != bytes([0, 0, UNSIGNED_BYTES, num_dimensions]) or len(content) < num_header_bytes:
        raise DataError(f"--data: {path} is no idx file of unsigned bytes in {num_dimensions} dimensions")
    shape = struct.unpack(f">{num_dimensions}I", content[4:num_header_bytes])
    if math.prod(shape) != len(content) - num_header_bytes:
        size = "x".join(map(str, shape))
        raise DataError(f"--data: {path} holds {len(content) - num_header_bytes} values; its header says {size}")
    return np.frombuffer(content, np.uint8, offset=num_header_bytes).reshape(shape)


def _existing(root: Path, name: str, num_dimensions: int) -> Path:
    path = _find(root, name, num_dimensions)
    if path is None:
        raise DataError(f"--data: {root} lacks {name}-idx{num_dimensions}-ubyte (or the same with .gz)")
    return path


def _find(root: Path, name: str, num_dimensions: int) -> Path | None:
    # Some mirrors write a dot where the publisher wrote a dash.
    pattern = re.compile(rf"{name}[-.]idx{num_dimensions}-ubyte(\.gz)?")
    return next((path for path in sorted(root.iterdir()) if pattern.fullmatch(path.name)), None)
