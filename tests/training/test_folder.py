"""A person's own images: what is taken, and what is refused with the name of the culprit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training.artifacts import Run
from training.config import DataConfig
from training.data.dataset import load_dataset, load_split
from training.data.folder import folder
from training.data.prepare import prepare
from training.errors import DataError


def fill(path: Path, count: int, mode: str = "L", size: tuple[int, int] = (9, 7)) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        Image.new(mode, size, index * 7 if mode == "L" else None).save(path / f"{index}.png")


def test_nested_files_of_any_size_and_mode_are_prepared(tmp_path: Path) -> None:
    root = tmp_path / "animals"
    fill(root / "cat", 6)
    fill(root / "cat" / "deep" / "er", 5, mode="RGBA", size=(40, 3))
    fill(root / "dog", 5, mode="P")
    Image.new("CMYK", (30, 50)).save(root / "dog" / "colour.JPG", format="JPEG")
    (root / "dog" / "notes.txt").write_text("not an image, and not taken for one")
    (root / "dog" / ".hidden.png").write_text("not an image either")
    (root / ".cache").mkdir()
    run = Run(tmp_path / "run")
    prepare(run, DataConfig(data=str(root), channels=3, height=8, width=10))
    dataset = load_dataset(run)
    assert dataset.classes == ["cat", "dog"]
    assert sum(dataset.num_samples.values()) == 17
    assert len(dataset.mean) == len(dataset.std) == 3
    images, labels = load_split(run, "train")
    assert images.shape[1:] == (3, 8, 10)
    assert set(labels.tolist()) == {0, 1}


def missing(root: Path) -> None:
    root.rmdir()


def no_classes(root: Path) -> None:
    Image.new("L", (2, 2)).save(root / "lonely.png")


def single_class(root: Path) -> None:
    fill(root / "cat", 5)


def empty_class(root: Path) -> None:
    fill(root / "cat", 5)
    (root / "dog").mkdir()


def too_few(root: Path) -> None:
    fill(root / "cat", 5)
    fill(root / "dog", 2)


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (missing, "is not a folder"),
        (no_classes, "no class folders"),
        (single_class, r"one class folder \(cat\).*at least two"),
        (empty_class, "class dog is empty"),
        (too_few, "class dog has 2 images; at least 3"),
    ],
)
def test_unusable_folders_are_named(tmp_path: Path, arrange: Callable[[Path], None], message: str) -> None:
    root = tmp_path / "own"
    root.mkdir()
    arrange(root)
    with pytest.raises(DataError, match=message):
        folder(root)


@pytest.mark.parametrize("content", [b"", b"no image", "truncated"])
def test_broken_file_is_named(tmp_path: Path, content: bytes | str) -> None:
    root = tmp_path / "own"
    fill(root / "cat", 5)
    fill(root / "dog", 5)
    broken = root / "dog" / "broken.png"
    if isinstance(content, str):
        noise = np.random.default_rng(0).integers(0, 255, size=(60, 60), dtype=np.uint8)
        Image.fromarray(noise).save(broken)
        broken.write_bytes(broken.read_bytes()[:1500])
    else:
        broken.write_bytes(content)
    with pytest.raises(DataError, match=r"dog/broken\.png cannot be read"):
        prepare(Run(tmp_path / "run"), DataConfig(data=str(root), channels=1, height=8, width=8))


def test_float_image_is_named(tmp_path: Path) -> None:
    root = tmp_path / "own"
    fill(root / "cat", 5)
    fill(root / "dog", 5)
    Image.new("F", (4, 4)).save(root / "dog" / "depth.tiff")
    with pytest.raises(DataError, match=r"dog/depth\.tiff: .*mode F"):
        prepare(Run(tmp_path / "run"), DataConfig(data=str(root), channels=1, height=8, width=8))
