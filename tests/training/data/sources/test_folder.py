"""A person's own images: what is taken, and what is refused with the name of the culprit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training.artifacts import SPLITS, Run
from training.data.dataset import load_dataset, load_split
from training.data.decode import open_image
from training.data.prepare import prepare
from training.data.sources import folder as folder_module
from training.data.sources.folder import folder
from training.errors import DataError
from training.options.config import DataConfig


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


def spoil(root: Path) -> list[str]:
    """Three classes of mixed formats and sizes; return the keys of those that are broken."""
    for number, name in enumerate(("ash", "birch", "cedar")):
        fill(root / name, 8, size=(9 + number, 7))
        Image.new("RGB", (30, 20 + number), (number * 90, 40, 9)).save(root / name / "photo.jpg")
    (root / "ash" / "empty.png").write_bytes(b"")
    whole = root / "cedar" / "cut.bmp"
    Image.new("RGB", (40, 40)).save(whole)
    whole.write_bytes(whole.read_bytes()[:900])
    (root / "birch" / "elsewhere.png").symlink_to("/nonexistent")
    (root / "birch" / "text.png").write_text("text")
    return ["ash/empty.png", "birch/elsewhere.png", "birch/text.png", "cedar/cut.bmp"]


def test_all_broken_files_are_named_before_it_stops(tmp_path: Path) -> None:
    names = spoil(tmp_path / "own")
    with pytest.raises(DataError) as stopped:
        prepare(Run(tmp_path / "run"), DataConfig(data=str(tmp_path / "own"), channels=3, height=8, width=8))
    assert "4 images cannot be used (--broken skip leaves them out)" in str(stopped.value)
    lines = str(stopped.value).splitlines()[1:]
    assert all(name in line for name, line in zip(names, lines, strict=True))
    assert lines[0].endswith("empty.png cannot be read as an image: it is empty")
    assert lines[2].endswith("text.png cannot be read as an image: it is of no format that Pillow knows")


def test_skipped_files_are_named_and_as_if_they_had_not_been_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "own"
    names = spoil(root)
    skipping = DataConfig(data=str(root), channels=3, height=8, width=8, broken="skip")
    with_them, without = Run(tmp_path / "with"), Run(tmp_path / "without")
    prepare(with_them, skipping)
    said = capsys.readouterr().out
    assert "left out, 4 broken:" in said
    assert all(name in said for name in names)
    assert load_dataset(with_them).left_out == names
    for name in names:
        (root / name).unlink()
    prepare(without, skipping)
    assert "broken" not in capsys.readouterr().out
    for split in SPLITS:
        assert with_them.images(split).read_bytes() == without.images(split).read_bytes()
        assert with_them.labels(split).read_bytes() == without.labels(split).read_bytes()


def test_an_image_is_decoded_once_though_others_are_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(tmp_path / "own")
    decoded: list[Path] = []

    def counted(path: Path) -> Image.Image:
        decoded.append(path)
        return open_image(path)

    monkeypatch.setattr(folder_module, "open_image", counted)
    prepare(Run(tmp_path / "run"), DataConfig(str(tmp_path / "own"), channels=1, height=8, width=8, broken="skip"))
    assert len(decoded) == len(set(decoded)) == 3 * 9 + 4


def test_tar_files_beside_class_folders_are_no_shards(tmp_path: Path) -> None:
    root = tmp_path / "animals"
    fill(root / "cat", 5)
    fill(root / "dog", 5)
    (root / "download.tar").write_bytes(b"what the images came in")
    prepare(Run(tmp_path / "run"), DataConfig(data=str(root), channels=1, height=8, width=8))
    assert load_dataset(Run(tmp_path / "run")).classes == ["cat", "dog"]


def test_a_class_that_skipping_leaves_too_small_is_named(tmp_path: Path) -> None:
    fill(tmp_path / "own" / "cat", 5)
    fill(tmp_path / "own" / "dog", 3)
    (tmp_path / "own" / "dog" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match="class dog has 2 images; at least 3"):
        prepare(Run(tmp_path / "run"), DataConfig(str(tmp_path / "own"), channels=1, height=8, width=8, broken="skip"))


@pytest.mark.parametrize("splits", [("train", "val"), ("Train", "test", "validation")])
def test_splits_are_not_taken_for_classes(tmp_path: Path, splits: tuple[str, ...]) -> None:
    for split in splits:
        for name in ("cat", "dog"):
            fill(tmp_path / split / name, 5)
    with pytest.raises(DataError, match=r"which are splits and no classes.*--data .*[tT]rain") as refused:
        folder(tmp_path)
    assert all(split in str(refused.value) for split in splits)
    assert folder(tmp_path / splits[0]).classes == ["cat", "dog"]


def test_one_class_may_be_called_test(tmp_path: Path) -> None:
    fill(tmp_path / "test", 5)
    fill(tmp_path / "used", 5)
    assert folder(tmp_path).classes == ["test", "used"]
