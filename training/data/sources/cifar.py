"""CIFAR-10 and CIFAR-100 in the two forms that https://www.cs.toronto.edu/~kriz/cifar.html publishes."""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data.sources.labelled import LabelledImages
from training.data.sources.published import Labelled, published
from training.errors import DataError

SIDE = 32
NUM_PIXEL_BYTES = 3 * SIDE * SIDE
# How numpy is asked, in a pickle, to rebuild an array; old names and new. Nothing else is ever called.
REBUILD_ARRAY = np.zeros(0).__reduce__()[0]


@dataclass(frozen=True)
class Layout:
    """Where one form of one data set has what."""

    name: str
    train: tuple[str, ...]
    test: str
    classes: str
    label: str
    """In a pickled batch, the key of its labels."""
    class_names: str
    """In the pickled description, the key of the names."""
    num_label_bytes: int
    """Before each image of the binary form; the last is the label."""


CIFAR10 = Layout(
    name="CIFAR-10 images",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    classes="batches.meta",
    label="labels",
    class_names="label_names",
    num_label_bytes=1,
)
CIFAR100 = Layout(
    name="CIFAR-100 images",
    train=("train",),
    test="test",
    classes="meta",
    label="fine_labels",
    class_names="fine_label_names",
    num_label_bytes=2,
)
CLASS_LISTS = {CIFAR10.name: "batches.meta.txt", CIFAR100.name: "fine_label_names.txt"}


def has_cifar_files(root: Path) -> bool:
    """Tell whether the folder holds CIFAR-10 or CIFAR-100, in either form."""
    return _layout(root) is not None


def cifar(root: Path) -> LabelledImages:
    """Return the images of both splits; the published test split stays that. CIFAR-100 is taken by its fine labels.

    Raises DataError, naming the file, for one that is missing or is not of the published form. A pickled batch is read
    without running anything that it asks for but the rebuilding of arrays.
    """
    layout = _layout(root)
    assert layout is not None, "has_cifar_files is asked first"
    if (root / layout.classes).is_file():
        names = _pickled_names(root / layout.classes, layout)
        read: Callable[[Path], Labelled] = lambda path: _pickled_batch(path, layout)  # noqa: E731
        suffix = ""
    else:
        names = _listed_names(_existing(root / CLASS_LISTS[layout.name]))
        read, suffix = (lambda path: _binary_batch(path, layout)), ".bin"
    batches = [read(_existing(root / f"{name}{suffix}")) for name in layout.train]
    train = (np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches]))
    return published(layout.name, dict(enumerate(names)), train, read(_existing(root / f"{layout.test}{suffix}")))


def read_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary of a published batch; raises DataError if it holds more than plain values and arrays."""
    try:
        document = _PlainUnpickler(io.BytesIO(_existing(path).read_bytes()), encoding="bytes").load()
    except _REFUSALS as error:
        raise DataError(f"--data: {path} is no batch as CIFAR publishes it: {error}") from error
    if not isinstance(document, dict):
        raise DataError(f"--data: {path} is no batch as CIFAR publishes it: it holds a {type(document).__name__}")
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in document.items()}


# What a hostile or damaged pickle makes the unpickler raise.
_REFUSALS = (
    pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError,
    OverflowError, MemoryError, RecursionError,
)  # fmt: skip


class _PlainUnpickler(pickle.Unpickler):
    """Knows how arrays are rebuilt, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        match module, name:
            case (("numpy.core.multiarray" | "numpy._core.multiarray"), "_reconstruct"):
                return REBUILD_ARRAY
            case "numpy", "ndarray":
                return np.ndarray
            case "numpy", "dtype":
                return np.dtype
            case "_codecs", "encode":  # how Python 3 writes bytes for Python 2
                return _encode_latin1
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")


def _encode_latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}, which no batch needs")
    return text.encode("latin1")


def _layout(root: Path) -> Layout | None:
    for layout in (CIFAR10, CIFAR100):
        if (root / layout.classes).is_file() or (root / f"{layout.train[0]}.bin").is_file():
            return layout
    return None


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"--data: {path.parent} lacks {path.name}")
    return path


def _pickled_names(path: Path, layout: Layout) -> list[str]:
    names = read_pickle(path).get(layout.class_names)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise DataError(f"--data: {path} has no list {layout.class_names}")
    return [name.decode() if isinstance(name, bytes) else name for name in names]


def _listed_names(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text().splitlines() if line.strip()]


def _pickled_batch(path: Path, layout: Layout) -> Labelled:
    document = read_pickle(path)
    rows, labels = document.get("data"), document.get(layout.label)
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape[1:] != (NUM_PIXEL_BYTES,):
        raise DataError(f"--data: {path} has no array data of bytes, {NUM_PIXEL_BYTES} a row")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels) or len(labels) != len(rows):
        raise DataError(f"--data: {path} has no list {layout.label} of one number for each of its {len(rows)} images")
    return _images(rows), np.array(labels, np.int64)


def _binary_batch(path: Path, layout: Layout) -> Labelled:
    content = np.fromfile(path, np.uint8)
    num_bytes = layout.num_label_bytes + NUM_PIXEL_BYTES
    if len(content) == 0 or len(content) % num_bytes:
        raise DataError(f"--data: {path} holds {len(content)} bytes; allowed are records of {num_bytes}")
    records = content.reshape(-1, num_bytes)
    return _images(records[:, layout.num_label_bytes :]), records[:, layout.num_label_bytes - 1].astype(np.int64)


def _images(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of red, then green, then blue -> [N, H, W, 3]."""
    return np.ascontiguousarray(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))
