"""Which reader a value of --data means."""

from collections.abc import Callable
from pathlib import Path

from training.data.shards.tar import has_shards
from training.data.sources.cifar import cifar, has_cifar_files
from training.data.sources.digits import digits
from training.data.sources.folder import folder
from training.data.sources.idx import has_idx_files, idx
from training.data.sources.labelled import LabelledImages
from training.data.sources.synthetic import synthetic
from training.errors import DataError

READERS: dict[str, Callable[[], LabelledImages]] = {"digits": digits, "synthetic": synthetic}


def is_streamed(data: str) -> bool:
    """Tell whether this value of --data means tar shards, whose training images are read as they are needed.

    A folder that is called like a built-in data set is that data set here as elsewhere.
    """
    return data not in READERS and has_shards(Path(data))


def open_source(data: str) -> LabelledImages:
    """Return the built-in images of that name, else those in the folder, known by the names of its files.

    Raises DataError if it is not usable.
    """
    if data in READERS:
        return READERS[data]()
    root = Path(data)
    if not root.is_dir():
        raise DataError(f"--data: {root} is not a folder")
    if has_idx_files(root):
        return idx(root)
    if has_cifar_files(root):
        return cifar(root)
    return folder(root)
