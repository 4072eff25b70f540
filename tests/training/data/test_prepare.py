"""What prepare leaves can be read back, and does not depend on anything but the data."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from training.artifacts import SPLITS, Run, sha256
from training.data.dataset import load_dataset, load_split, new_images
from training.data.decode import ImageShape
from training.data.prepare import prepare
from training.data.statistics import channel_statistics, count_values
from training.errors import RunError, StorageError
from training.options.config import Config, DataConfig


def test_statistics_are_of_the_training_split_alone(prepared: Run) -> None:
    dataset = load_dataset(prepared)
    images = np.load(prepared.images("train")) / 255
    assert dataset.mean == pytest.approx([images.mean()], abs=1e-12)
    assert dataset.std == pytest.approx([images.std()], abs=1e-12)
    everything = np.concatenate([np.load(prepared.images(split)) for split in SPLITS]) / 255
    assert abs(everything.mean() - dataset.mean[0]) > 1e-6


def test_statistics_per_channel_and_without_contrast() -> None:
    images = np.zeros((4, 3, 5, 5), dtype=np.uint8)
    images[:, 1] = 255
    images[:2, 2] = 255
    mean, std = channel_statistics(count_values(images, 3))
    assert mean == pytest.approx([0, 1, 0.5])
    assert std == pytest.approx([1, 1, 0.5])


def test_prepare_again_leaves_the_same_bytes(
    prepared: Run, config: Config, tmp_path_factory: pytest.TempPathFactory
) -> None:
    again = Run(tmp_path_factory.mktemp("again"))
    prepare(again, config.data)
    for split in SPLITS:
        assert sha256(again.images(split)) == sha256(prepared.images(split))
        assert sha256(again.labels(split)) == sha256(prepared.labels(split))
    assert again.dataset.read_text() == prepared.dataset.read_text()


def test_built_in_images_take_other_forms(tmp_path_factory: pytest.TempPathFactory) -> None:
    run = Run(tmp_path_factory.mktemp("colour"))
    prepare(run, DataConfig(data="synthetic", channels=3, height=20, width=15))
    images, labels = load_split(run, "test")
    assert images.shape == (60, 3, 20, 15)
    assert labels.shape == (60,)


def test_unprepared_run_says_which_stage_is_missing(tmp_path_factory: pytest.TempPathFactory) -> None:
    run = Run(tmp_path_factory.mktemp("empty"))
    with pytest.raises(RunError, match="training prepare"):
        load_dataset(run)
    with pytest.raises(RunError, match="training prepare"):
        load_split(run, "train")


def test_a_disk_without_room_is_found_out_before_pages_are_written(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a sparse file, it is found out by the page that has no room, and is SIGBUS."""
    path = tmp_path / "images.npy"
    new_images(path, 100, ImageShape(3, 64, 64))
    assert path.stat().st_blocks * 512 >= path.stat().st_size

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match=r"train-images\.npy cannot be written: No space left on device"):
        prepare(Run(tmp_path / "run"), config.data)
