"""What prepare leaves of shards, what pack puts into them, and the shards that cannot be used."""

import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.training.data.shards.numbered_shards import (
    NUM_IMAGES,
    SIDE,
    flat,
    numbered,
    numbers_of,
    source,
    take,
    write_shard,
    write_shards,
)
from training.artifacts import Run
from training.data.dataset import load_dataset, load_split
from training.data.prepare import prepare
from training.data.shards import prepare as prepare_stream
from training.data.shards.pack import pack
from training.data.shards.tar import Sample, samples
from training.data.sources.open_source import is_streamed
from training.errors import DataError, SettingError
from training.options.config import Config, DataConfig


def test_prepare_walks_each_shard_twice_to_count_and_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: Counter[str] = Counter()

    def counted(path: Path) -> Iterator[Sample]:
        walks[path.name] += 1
        return samples(path)

    monkeypatch.setattr(prepare_stream, "samples", counted)
    for name in ("train-0", "val-0", "test-0"):
        write_shard(tmp_path / f"{name}.tar", list(range(8)))
    prepare(Run(tmp_path / "run"), DataConfig(data=str(tmp_path), channels=1, height=SIDE, width=SIDE))
    assert walks == {"train-0.tar": 2, "val-0.tar": 2, "test-0.tar": 2}


def test_prepare_counts_and_leaves_a_sample(tmp_path: Path) -> None:
    root = tmp_path / "shards"
    root.mkdir()
    write_shards(root)
    run = Run(tmp_path / "run")
    prepare(run, DataConfig(data=str(root), channels=1, height=SIDE, width=SIDE))
    dataset = load_dataset(run)
    assert dataset.num_samples == NUM_IMAGES
    assert dataset.classes == ["0", "1"]
    images, _ = load_split(run, "train")
    everything = np.stack([np.asarray(Image.open(io.BytesIO(numbered(number)))) for number in range(403)]) / 255
    assert dataset.mean == pytest.approx([everything.mean()])
    assert numbers_of(images) == list(range(403)), "fewer than the largest sample: all of them"
    assert numbers_of(load_split(run, "test")[0]) == list(range(9))


def test_broken_images_are_named_and_stay_out_of_every_epoch(tmp_path: Path) -> None:
    root = tmp_path / "shards"
    root.mkdir()
    for name in ("train-0", "train-1", "val-0", "test-0"):
        write_shard(root / f"{name}.tar", list(range(40)), break_at=None if name == "train-0" else 17)
    form = DataConfig(data=str(root), channels=1, height=SIDE, width=SIDE)
    with pytest.raises(DataError, match="3 images cannot be used") as stopped:
        prepare(Run(tmp_path / "fail"), form)
    assert "train-1.tar/deep/000017.png" in str(stopped.value)
    run = Run(tmp_path / "skip")
    prepare(run, replace(form, broken="skip"))
    dataset = load_dataset(run)
    assert dataset.num_samples == {"train": 79, "validation": 39, "test": 39}
    assert len(load_split(run, "test")[0]) == 39
    assert dataset.left_out[-1] == "val-0.tar/deep/000017.png"
    assert sorted(flat(take(source(dataset, workers=2)))) == sorted([*range(40), *range(17), *range(18, 40)])


def test_a_folder_called_like_a_built_in_data_set_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack("synthetic", tmp_path / "digits", images_per_shard=50, broken="fail")
    monkeypatch.chdir(tmp_path)
    assert not is_streamed("digits")
    assert is_streamed("./digits")


def test_packed_images_train_as_the_folder_would(tmp_path: Path, prepared: Run, config: Config) -> None:
    pack("synthetic", tmp_path / "shards", images_per_shard=50, broken="fail")
    assert len(list((tmp_path / "shards").glob("train-*.tar"))) == 5
    run = Run(tmp_path / "run")
    prepare(run, replace(config.data, data=str(tmp_path / "shards")))
    dataset, arrays = load_dataset(run), load_dataset(prepared)
    assert (dataset.classes, dataset.num_samples) == (arrays.classes, arrays.num_samples)
    assert dataset.mean == pytest.approx(arrays.mean)
    packed = torch.cat([batch.images for batch in source(dataset)])
    images, _ = load_split(prepared, "train")
    assert {image.numpy().tobytes() for image in packed.round().byte()} == {image.numpy().tobytes() for image in images}
    pack("synthetic", tmp_path / "again", images_per_shard=50, broken="fail")
    for path in sorted((tmp_path / "shards").iterdir()):
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    with pytest.raises(SettingError, match="is there already"):
        pack("synthetic", tmp_path / "shards", images_per_shard=50, broken="fail")


def no_train(root: Path) -> None:
    (root / "train-0.tar").unlink()


def no_label(root: Path) -> None:
    write_one(root, "000000.png", numbered(0))


def odd_label(root: Path) -> None:
    write_one(root, "000000.cls", b"cat")


def no_tar(root: Path) -> None:
    (root / "train-0.tar").write_bytes(b"no tar" * 300)


def odd_name(root: Path) -> None:
    write_shard(root / "part-0.tar", [1, 2])


def missing_class(root: Path) -> None:
    write_shard(root / "test-0.tar", [0, 2])


def write_one(root: Path, name: str, content: bytes) -> None:
    with tarfile.open(root / "train-0.tar", "w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))


def broken_index(root: Path) -> None:
    (root / "shards.json").write_text("{}")


def other_count(root: Path) -> None:
    names = {split: {f"{split}-0.tar": 7} for split in ("train", "validation", "test")}
    (root / "shards.json").write_text(json.dumps({"classes": ["even", "odd"], "shards": names}))
    write_shard(root / "validation-0.tar", list(range(8)))


def few_classes(root: Path) -> None:
    other_count(root)
    index = root / "shards.json"
    index.write_text(index.read_text().replace('"even", ', "").replace("7", "8"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_train, "has no shard for train"),
        (no_label, "sample 000000 lacks its label"),
        (odd_label, "000000.cls is b'cat'; allowed is the number of a class"),
        (no_tar, r"train-0\.tar cannot be read as a tar file"),
        (odd_name, r"part-0\.tar has no shards\.json beside it"),
        (missing_class, "class 1 has no image in the test shards"),
        (broken_index, r"shards\.json is no index of shards"),
        (other_count, r"validation-0\.tar holds 8 images; its index says 7"),
        (few_classes, "has label 1; there are 1 classes"),
    ],
)
def test_shards_that_cannot_be_used_are_named(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    for name in ("train-0", "val-0", "test-0"):
        write_shard(tmp_path / f"{name}.tar", list(range(8)))
    damage(tmp_path)
    with pytest.raises(DataError, match=message):
        prepare(Run(tmp_path / "run"), DataConfig(data=str(tmp_path), channels=1, height=SIDE, width=SIDE))
