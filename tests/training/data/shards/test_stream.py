"""Shards, read by real DataLoader workers: each image once an epoch over all ranks, no repeat after an interruption."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.data.shards.numbered_shards import NUM_IMAGES, SIDE, flat, source, take, write_shard, write_shards
from training.artifacts import Run
from training.data.batches import ArrayBatches
from training.data.dataset import Dataset, load_dataset
from training.data.prepare import prepare
from training.data.shards.stream import StreamBatches
from training.errors import DataError, SettingError
from training.options.config import AugmentConfig, DataConfig, LoaderConfig


@pytest.fixture(scope="session")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("shards")
    write_shards(root)
    run = Run(tmp_path_factory.mktemp("streamed"))
    prepare(run, DataConfig(data=str(root), channels=1, height=SIDE, width=SIDE))
    return load_dataset(run)


def test_four_workers_of_two_ranks_see_each_image_once_an_epoch(streamed: Dataset) -> None:
    ranks = [source(streamed, rank, 2, workers=4) for rank in range(2)]
    orders = []
    for _ in range(2):
        epochs = [take(rank) for rank in ranks]
        assert len(epochs[0]) == len(epochs[1]) == ranks[0].num_batches()
        orders.append(flat(epochs[0]) + flat(epochs[1]))
        assert sorted(orders[-1]) == list(range(NUM_IMAGES["train"]))
    assert orders[0] != orders[1]
    assert max(map(abs, np.diff(orders[0]))) > 50, "the order is shuffled"


def test_shards_come_in_another_order_each_epoch(streamed: Dataset) -> None:
    unbuffered = StreamBatches(
        streamed, batch_size=32, augment=AugmentConfig(), seed=0, loader=LoaderConfig(shuffle_buffer=1)
    )
    firsts = [flat(take(unbuffered))[0] for _ in range(6)]
    assert set(firsts) <= {0, 2, 300}, "a buffer of one keeps the order within a shard"
    assert len(set(firsts)) > 1


def test_all_ranks_tell_the_size_of_the_whole_batch(streamed: Dataset) -> None:
    ranks = [list(source(streamed, rank, 2)) for rank in range(2)]
    for first, second in zip(*ranks, strict=True):
        assert first.num_images == second.num_images == len(first.images) + len(second.images)


@pytest.mark.parametrize("stop", [1, 13])
def test_going_on_in_mid_epoch_is_as_if_nothing_had_been(streamed: Dataset, stop: int) -> None:
    undisturbed = source(streamed, workers=3)
    whole, following = take(undisturbed), take(undisturbed)
    interrupted = source(streamed, workers=3)
    before = take(interrupted, stop)
    resumed = source(streamed, workers=3)
    resumed.load_state_dict(json.loads(json.dumps(interrupted.state_dict())))
    assert before + take(resumed) == whole
    assert take(resumed) == following


def test_others_go_on_with_what_is_left_and_repeat_none(streamed: Dataset) -> None:
    before = [source(streamed, rank, 2, workers=4) for rank in range(2)]
    seen = [number for rank in before for number in flat(take(rank, 3))]
    states = [rank.state_dict() for rank in before]
    assert states[0] == states[1]
    after = [source(streamed, rank, 3, workers=2) for rank in range(3)]
    for rank in after:
        rank.load_state_dict(states[0])
    seen += [number for rank in after for number in flat(take(rank))]
    assert sorted(seen) == list(range(NUM_IMAGES["train"]))


@pytest.mark.parametrize("batch_size", [20, 23, 26])
def test_an_epoch_has_the_same_number_of_batches_for_all_who_take_part(streamed: Dataset, batch_size: int) -> None:
    """The last batch would have 3, 12 or 13 images; where half a batch is missing it joins its predecessor."""
    state = source(streamed).state_dict()
    seen: list[int] = []
    num_batches = 0
    for num_ranks, most in ((1, 4), (2, 3), (3, 5), (1, 99)):
        ranks = [source(streamed, rank, num_ranks, batch_size=batch_size) for rank in range(num_ranks)]
        assert ranks[0].num_batches() == round(NUM_IMAGES["train"] / batch_size)
        for rank in ranks:
            rank.load_state_dict(state)
        taken = [take(rank, most) for rank in ranks]
        seen += [number for batches in taken for number in flat(batches)]
        num_batches += len(taken[0])
        state = ranks[0].state_dict()
    assert sorted(seen) == list(range(NUM_IMAGES["train"]))
    assert num_batches == round(NUM_IMAGES["train"] / batch_size)


def test_batches_too_small_for_their_shards_are_refused(streamed: Dataset) -> None:
    with pytest.raises(SettingError, match="--batch-size is 11, and 3 processes share each batch; allowed is 12 or"):
        source(streamed, num_ranks=3, batch_size=11)
    images, labels = torch.zeros(40, 1, 2, 2, dtype=torch.uint8), torch.arange(40)
    with pytest.raises(SettingError, match="--batch-size is 7, and 2 processes share each batch; allowed is 8 or more"):
        ArrayBatches(images, labels, batch_size=7, augment=AugmentConfig(), seed=0, num_shards=2)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (LoaderConfig(sampler="balanced"), "--sampler balanced draws images in any order"),
        (LoaderConfig(workers=1, pin_memory=True), "--pin-memory goes with prepared arrays"),
    ],
)
def test_what_shards_cannot_do_is_refused(loader: LoaderConfig, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        loader.check_source(is_stream=True)


def test_augmentation_goes_on_too(streamed: Dataset) -> None:
    def moving() -> StreamBatches:
        return StreamBatches(streamed, batch_size=64, augment=AugmentConfig(translation=0.3), seed=3)

    whole = [batch.images for batch in moving()]
    interrupted, resumed = moving(), moving()
    next(iter(interrupted))
    resumed.load_state_dict(interrupted.state_dict())
    for one, other in zip(whole[1:], (batch.images for batch in resumed), strict=True):
        assert torch.equal(one, other)


def test_no_two_batches_are_moved_alike(streamed: Dataset) -> None:
    def moved(rank: int, epoch: int, part: int, number: int) -> bytes:
        batches = StreamBatches(
            streamed, batch_size=8, augment=AugmentConfig(translation=0.3), seed=0, shard=rank, num_shards=2
        )
        batches.epoch = epoch
        return batches._augmented(torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4), part, number).numpy().tobytes()

    places = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    assert len({moved(*place) for place in places}) == len(places)
    assert moved(*places[0]) == moved(*places[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_that_changed_since_they_were_prepared_are_one_clear_error(tmp_path: Path, workers: int) -> None:
    for name in ("train-0", "val-0", "test-0"):
        write_shard(tmp_path / f"{name}.tar", list(range(80)))
    run = Run(tmp_path / "run")
    prepare(run, DataConfig(data=str(tmp_path), channels=1, height=SIDE, width=SIDE))
    write_shard(tmp_path / "train-0.tar", list(range(8)))
    with pytest.raises(DataError, match=r"train-0\.tar has other images than when it was prepared") as stopped:
        take(source(load_dataset(run), workers=workers))
    assert len(str(stopped.value).splitlines()) == 1
    (tmp_path / "train-0.tar").unlink()
    with pytest.raises(DataError, match=r"train-0\.tar cannot be read"):
        take(source(load_dataset(run), workers=workers))
