"""How images come to the model: which ones, in what order, by whom."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor
from torch.utils.data import IterableDataset

from training.artifacts import Run
from training.data.batches import ArrayBatches
from training.data.dataset import load_dataset, load_split
from training.data.open_batches import open_batches
from training.data.sampler import draw_order
from training.data.to_device import Transfer, load_batches
from training.errors import LoaderError, SettingError
from training.options.config import AugmentConfig, Config, LoaderConfig

CPU = torch.device("cpu")


def batches_of(run: Run, loader: LoaderConfig) -> ArrayBatches:
    images, labels = load_split(run, "train")
    augment = AugmentConfig(translation=0.1)
    return ArrayBatches(images, labels, batch_size=32, augment=augment, seed=0, loader=loader)


def test_workers_change_no_bit(prepared: Run) -> None:
    alone, helped = batches_of(prepared, LoaderConfig()), batches_of(prepared, LoaderConfig(workers=2, prefetch=1))
    for _ in range(2):
        for one, other in zip(alone, helped, strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)
    assert torch.equal(alone.generator.get_state(), helped.generator.get_state())


def test_workers_go_on_in_mid_epoch(prepared: Run) -> None:
    whole = [batch.images for batch in batches_of(prepared, LoaderConfig())]
    interrupted = batches_of(prepared, LoaderConfig(workers=2))
    given = iter(interrupted)
    next(given), next(given)
    resumed = batches_of(prepared, LoaderConfig(workers=2))
    resumed.load_state_dict(interrupted.state_dict())
    for one, other in zip(whole[2:], (batch.images for batch in resumed), strict=True):
        assert torch.equal(one, other)


def test_random_takes_each_once_as_ever() -> None:
    labels = torch.zeros(50, dtype=torch.int64)
    order = draw_order(labels, "random", Generator().manual_seed(3))
    assert torch.equal(order, torch.randperm(50, generator=Generator().manual_seed(3)))


def test_balanced_draws_all_classes_equally_often() -> None:
    labels = torch.tensor([0] * 900 + [1] * 90 + [2] * 10)
    order = draw_order(labels, "balanced", Generator().manual_seed(0))
    assert len(order) == len(labels)
    counts = torch.bincount(labels[order], minlength=3)
    assert all(280 <= count <= 390 for count in counts.tolist()), counts  # four deviations of 15 around 333
    assert torch.equal(order, draw_order(labels, "balanced", Generator().manual_seed(0)))


def test_balanced_epochs_resume_too(prepared: Run) -> None:
    loader = LoaderConfig(sampler="balanced")
    whole = [batch.labels for batch in batches_of(prepared, loader)]
    interrupted, resumed = batches_of(prepared, loader), batches_of(prepared, loader)
    next(iter(interrupted))
    resumed.load_state_dict(interrupted.state_dict())
    for one, other in zip(whole[1:], (batch.labels for batch in resumed), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "--workers is -1; allowed is 0 or more"),
        ({"prefetch": 2}, "--prefetch goes with --workers"),
        ({"pin_memory": True}, "--pin-memory goes with --workers"),
        ({"workers": 1, "prefetch": 0}, "--prefetch is 0; allowed is 1 or more"),
        ({"shuffle_buffer": 0}, "--shuffle-buffer is 0; allowed is 1 or more"),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        LoaderConfig(**options)  # type: ignore[arg-type]


def test_settings_without_a_meaning_are_refused(prepared: Run, config: Config) -> None:
    for loader, message in (
        (LoaderConfig(shuffle_buffer=9), "--shuffle-buffer goes with tar shards"),
        (
            LoaderConfig(workers=1, pin_memory=True),
            "--pin-memory speeds up copies to a GPU; this training is",
        ),
    ):
        with pytest.raises(SettingError, match=message):
            open_batches(prepared, load_dataset(prepared), replace(config.train, loader=loader), device=CPU)


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an NVIDIA GPU: page-locked memory is for copies to one"
)
def test_pinned_batches_arrive_on_the_gpu(prepared: Run, config: Config) -> None:
    loader = LoaderConfig(workers=1, pin_memory=True)
    source = open_batches(
        prepared, load_dataset(prepared), replace(config.train, loader=loader), device=torch.device("cuda")
    )
    plain = batches_of(prepared, LoaderConfig())
    for moved, here in zip(source, plain, strict=True):
        assert moved.images.is_cuda
        assert torch.equal(moved.labels.cpu(), here.labels)
    assert Transfer(torch.device("cuda"), pin_memory=True)(torch.ones(3)).is_cuda


class Dying(IterableDataset[Tensor]):
    """Ends its process, as a machine without memory would."""

    def __iter__(self) -> Iterator[Tensor]:
        yield torch.ones(1)
        os.kill(os.getpid(), signal.SIGKILL)


class Stuck(IterableDataset[Tensor]):
    """Gives one item and then no other, as a disk that does not answer would."""

    def __iter__(self) -> Iterator[Tensor]:
        yield torch.ones(1)
        threading.Event().wait(60)


def test_a_worker_that_gives_nothing_is_not_waited_for_for_ever() -> None:
    with pytest.raises(LoaderError, match="the workers that read images gave none for 2 seconds; --workers 0"):
        list(load_batches(Stuck(), LoaderConfig(workers=1), timeout_seconds=2))


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: elsewhere workers are not watched by signal")
def test_a_worker_that_is_killed_is_one_clear_error() -> None:
    with pytest.raises(LoaderError, match="a worker that reads images died") as stopped:
        list(load_batches(Dying(), LoaderConfig(workers=1)))
    assert len(str(stopped.value).splitlines()) == 1
