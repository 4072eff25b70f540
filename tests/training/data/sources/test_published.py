"""MNIST and CIFAR as they are published: read back pixel for pixel, their test split kept, nothing in them run."""

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from training.artifacts import Run
from training.data.dataset import load_dataset, load_split
from training.data.prepare import prepare
from training.data.sources.cifar import read_pickle
from training.data.sources.open_source import open_source
from training.errors import DataError
from training.options.config import DataConfig

Pixels = NDArray[np.uint8]


def write_idx(path: Path, array: Pixels) -> None:
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def mnist(root: Path, suffix: str = "", dash: str = "-") -> tuple[Pixels, Pixels]:
    """Sixty images to train, twenty to test, two in each class; return those to test, and their labels."""
    root.mkdir()
    rng = np.random.default_rng(0)
    for split, number in (("train", 60), ("t10k", 20)):
        images = rng.integers(0, 256, (number, 28, 28), dtype=np.uint8)
        labels = (np.arange(number) % 10).astype(np.uint8)
        write_idx(root / f"{split}-images{dash}idx3-ubyte{suffix}", images)
        write_idx(root / f"{split}-labels{dash}idx1-ubyte{suffix}", labels)
    return images, labels


def cifar_rows(seed: int, number: int) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (number, 3072), dtype=np.uint8)


def cifar10(root: Path, *, binary: bool) -> tuple[Pixels, NDArray[np.int64]]:
    root.mkdir()
    names = [f"class {number}" for number in range(10)]
    for seed, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        rows, labels = cifar_rows(seed, 10), np.arange(10)
        if binary:
            records = np.concatenate([labels.astype(np.uint8)[:, np.newaxis], rows], axis=1)
            (root / f"{name}.bin").write_bytes(records.tobytes())
        else:
            # As Python 2 wrote them: keys and names are bytes.
            document = {b"data": rows, b"labels": labels.tolist(), b"batch_label": name.encode()}
            # The module of arrays was called so when CIFAR was published.
            content = pickle.dumps(document, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
            (root / name).write_bytes(content)
    if binary:
        (root / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    else:
        meta = {b"label_names": [name.encode() for name in names], b"num_vis": 3072}
        (root / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return rows.reshape(10, 3, 32, 32), labels


def cifar100(root: Path, *, binary: bool) -> tuple[Pixels, NDArray[np.int64]]:
    root.mkdir()
    names = [f"fine {number}" for number in range(4)]
    for seed, (name, number) in enumerate([("train", 12), ("test", 8)]):
        rows, fine = cifar_rows(seed, number), np.arange(number) % 4
        coarse = fine // 2
        if binary:
            records = np.concatenate([np.stack([coarse, fine], axis=1).astype(np.uint8), rows], axis=1)
            (root / f"{name}.bin").write_bytes(records.tobytes())
        else:
            document = {b"data": rows, b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist()}
            (root / name).write_bytes(pickle.dumps(document, protocol=2))
    if binary:
        (root / "fine_label_names.txt").write_text("\n".join(names))
    else:
        (root / "meta").write_bytes(pickle.dumps({b"fine_label_names": [name.encode() for name in names]}, protocol=2))
    return rows.reshape(8, 3, 32, 32), fine


@pytest.mark.parametrize(("suffix", "dash"), [("", "-"), (".gz", "-"), ("", ".")])
def test_mnist_keeps_its_test_split(tmp_path: Path, suffix: str, dash: str) -> None:
    images, labels = mnist(tmp_path / "mnist", suffix, dash)
    run = Run(tmp_path / "run")
    prepare(run, DataConfig(data=str(tmp_path / "mnist"), channels=1, height=28, width=28))
    pixels, found = load_split(run, "test")
    assert np.array_equal(pixels[:, 0].numpy(), images)
    assert found.tolist() == labels.tolist()
    dataset = load_dataset(run)
    assert dataset.classes == [str(digit) for digit in range(10)]
    assert dataset.num_samples == {"train": 50, "validation": 10, "test": 20}


def test_fashion_is_known_by_its_folder(tmp_path: Path) -> None:
    mnist(tmp_path / "FashionMNIST", ".gz")
    assert open_source(str(tmp_path / "FashionMNIST")).classes[9] == "Ankle boot"


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("write", "name"), [(cifar10, "class 3"), (cifar100, "fine 3")])
def test_cifar_keeps_its_test_split(tmp_path: Path, write: Callable[..., Any], name: str, binary: bool) -> None:
    images, labels = write(tmp_path / "cifar", binary=binary)
    run = Run(tmp_path / "run")
    prepare(run, DataConfig(data=str(tmp_path / "cifar"), channels=3, height=32, width=32))
    pixels, found = load_split(run, "test")
    assert np.array_equal(pixels.numpy(), images)
    assert found.tolist() == labels.tolist()
    assert load_dataset(run).classes[3] == name


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    cifar10(tmp_path / "cifar", binary=False)
    mark = tmp_path / "was-here"
    batch = tmp_path / "cifar" / "data_batch_3"
    batch.write_bytes(pickle.dumps({b"data": Hostile(mark)}, protocol=2))
    with pytest.raises(DataError, match=r"data_batch_3 is no batch.*it asks for __builtin__\.getattr"):
        open_source(str(tmp_path / "cifar"))
    assert not mark.exists()
    pickle.loads(batch.read_bytes())  # noqa: S301 - it is our own, and shows that the test could fail
    assert mark.exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps([1, 2]), pickle.dumps({1: 2})[:-4]])
def test_what_is_no_batch_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(DataError, match="data_batch_1 is no batch"):
        read_pickle(tmp_path / "data_batch_1")


def short_header(root: Path) -> None:
    (root / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0\0")


def too_few_pixels(root: Path) -> None:
    path = root / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])


def missing_labels(root: Path) -> None:
    (root / "t10k-labels-idx1-ubyte").unlink()


def fewer_labels(root: Path) -> None:
    write_idx(root / "train-labels-idx1-ubyte", np.zeros(59, np.uint8))


def unknown_label(root: Path) -> None:
    write_idx(root / "t10k-labels-idx1-ubyte", np.full(20, 77, np.uint8))


def cut_gzip(root: Path) -> None:
    path = root / "train-images-idx3-ubyte"
    (root / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(path.read_bytes())[:-9])
    path.unlink()


def lonely_class(root: Path) -> None:
    write_idx(root / "train-labels-idx1-ubyte", np.array([0] * 59 + [1], np.uint8))
    write_idx(root / "t10k-labels-idx1-ubyte", np.zeros(20, np.uint8))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (short_header, "train-images-idx3-ubyte is no idx file"),
        (too_few_pixels, "holds 47039 values; its header says 60x28x28"),
        (missing_labels, "lacks t10k-labels-idx1-ubyte"),
        (fewer_labels, "has 59 labels for 60 images"),
        (unknown_label, "label 77 has no class"),
        (cut_gzip, r"train-images-idx3-ubyte\.gz cannot be read"),
        (lonely_class, "class 1 has 1 training images; at least 2"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    mnist(tmp_path / "mnist")
    damage(tmp_path / "mnist")
    with pytest.raises(DataError, match=message):
        open_source(str(tmp_path / "mnist"))


def missing_batch(root: Path) -> None:
    (root / "data_batch_5").unlink()


def other_width(root: Path) -> None:
    document = {b"data": np.zeros((10, 3000), np.uint8), b"labels": [0] * 10}
    (root / "data_batch_2").write_bytes(pickle.dumps(document, protocol=2))


def no_labels(root: Path) -> None:
    (root / "data_batch_2").write_bytes(pickle.dumps({b"data": cifar_rows(0, 10)}, protocol=2))


def no_names(root: Path) -> None:
    (root / "batches.meta").write_bytes(pickle.dumps({b"other": 1}, protocol=2))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (missing_batch, "lacks data_batch_5"),
        (other_width, "data_batch_2 has no array data"),
        (no_labels, "data_batch_2 has no list labels"),
        (no_names, r"batches\.meta has no list label_names"),
    ],
)
def test_damaged_batches_are_named(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    cifar10(tmp_path / "cifar", binary=False)
    damage(tmp_path / "cifar")
    with pytest.raises(DataError, match=message):
        open_source(str(tmp_path / "cifar"))


def test_a_cut_binary_batch_is_named(tmp_path: Path) -> None:
    cifar10(tmp_path / "cifar", binary=True)
    path = tmp_path / "cifar" / "data_batch_1.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_1\.bin holds 30729 bytes; allowed are records of 3073"):
        open_source(str(tmp_path / "cifar"))
