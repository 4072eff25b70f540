"""Tar shards: each image and its label next to each other, as KEY.png (or .jpg, ...) and KEY.cls (WebDataset's layout).

An index beside them, shards.json, names classes and splits. Without one, a shard's name begins with its split, and
classes are called by the numbers in the .cls files.
"""

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from training.artifacts import SPLITS, Split
from training.data.sources.folder import LEAST_CLASSES, class_folders, image_suffixes
from training.errors import DataError

INDEX = "shards.json"
SPLIT_OF_NAME = re.compile(r"(train|validation|val|test)(?![a-z]).*\.tar")


@dataclass(frozen=True)
class Shard:
    """One tar file; `num_samples` and `num_bytes` are what it had when it was prepared."""

    name: str
    num_samples: int
    num_bytes: int


@dataclass(frozen=True)
class Sample:
    """Where an encoded image lies in its shard, and its label."""

    name: str
    label: int
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class ShardFolder:
    """The shards of each split, in the order of their names; classes are None where no index names them."""

    root: Path
    paths: dict[Split, list[Path]]
    classes: list[str] | None
    num_samples: dict[str, int]
    """Of each shard, by its name, as the index says; empty without one."""


def has_shards(root: Path) -> bool:
    """Tell whether the folder holds an index of tar files, or tar files but no classes: those may be its download."""
    if not root.is_dir():
        return False
    return (root / INDEX).is_file() or (any(root.glob("*.tar")) and len(class_folders(root)) < LEAST_CLASSES)


def open_shards(root: Path) -> ShardFolder:
    """Return what the folder holds; raises DataError if a split or a shard that the index names is missing."""
    classes = None
    counts: dict[str, int] = {}
    paths: dict[Split, list[Path]] = {split: [] for split in SPLITS}
    if (root / INDEX).is_file():
        try:
            document = json.loads((root / INDEX).read_text())
            classes = [str(name) for name in document["classes"]]
            for split in SPLITS:
                paths[split] = [root / name for name in document["shards"][split]]
                counts |= {name: int(count) for name, count in document["shards"][split].items()}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"--data: {root / INDEX} is no index of shards: {error!r}") from error
    else:
        for path in sorted(root.glob("*.tar")):
            found = SPLIT_OF_NAME.fullmatch(path.name)
            if found is None:
                raise DataError(f"--data: {path} has no {INDEX} beside it, and its name does not begin with its split")
            prefix = found[1]
            paths["train" if prefix == "train" else "test" if prefix == "test" else "validation"].append(path)
    for split in SPLITS:
        if not paths[split]:
            raise DataError(f"--data: {root} has no shard for {split}; `python -m training pack` makes all three")
        for path in paths[split]:
            if not path.is_file():
                raise DataError(f"--data: {root / INDEX} names {path.name}, which is not there")
    return ShardFolder(root, paths, classes, counts)


def samples(path: Path) -> Iterator[Sample]:
    """Return the shard's samples in their order; headers and labels are read, images are stepped over.

    Raises DataError, naming file and sample, for a shard that ends early, an image without a label or with one that is
    no number.
    """
    suffixes = image_suffixes()
    image: tarfile.TarInfo | None = None
    label: int | None = None
    key = ""
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                where = PurePosixPath(member.name)
                stem, dot, extension = where.name.partition(".")
                if str(where.with_name(stem or where.name)) != key:
                    if (image is None) != (label is None):
                        raise DataError(f"--data: {path}: sample {key} lacks its {'label' if image else 'image'}")
                    key, image, label = str(where.with_name(stem or where.name)), None, None
                if extension == "cls":
                    content = archive.extractfile(member)
                    assert content is not None, "it is a file"
                    label = _label(content.read(32), f"{path}: {member.name}")
                elif f"{dot}{extension.lower()}" in suffixes:
                    image = member
                if image is not None and label is not None:
                    yield Sample(image.name, label, image.offset_data, image.size)
                    image = label = None
                    key = ""
                archive.members = []  # type: ignore[attr-defined]  # else it remembers all headers
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"--data: {path} cannot be read as a tar file: {error}") from error
    if (image is None) != (label is None):
        raise DataError(f"--data: {path}: sample {key} lacks its {'label' if image else 'image'}")


def read_sample(file: BinaryIO, sample: Sample) -> bytes:
    """Return the encoded image, read from its shard."""
    file.seek(sample.offset)
    return file.read(sample.num_bytes)


def _label(content: bytes, name: str) -> int:
    try:
        label = int(content)
    except ValueError:
        label = -1
    if label < 0:
        raise DataError(f"--data: {name} is {content!r}; allowed is the number of a class")
    return label
