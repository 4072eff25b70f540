"""The latency model learns the service time of batches of any sizes, and a hiccup does not mislead it."""

import random

import pytest

from service.batching.latency_model import MARGIN_BOUNDS, WINDOW, LatencyModel


def learn_one(model: LatencyModel, size: int, seconds: float) -> None:
    model.learn(size, seconds, seconds, seconds)


def learn(model: LatencyModel, sizes: list[int], fixed: float, per_item: float, noise: float = 0.0) -> LatencyModel:
    chance = random.Random(0)
    for size in sizes:
        learn_one(model, size, (fixed + per_item * size) * (1 + noise * chance.uniform(-1, 1)))
    return model


def test_it_finds_both_parts() -> None:
    model = learn(LatencyModel(), [1, 8, 32, 16, 4] * 20, 0.005, 0.001)
    assert model.fixed_seconds == pytest.approx(0.005, rel=0.02)
    assert model.per_item_seconds == pytest.approx(0.001, rel=0.02)
    noisy = learn(LatencyModel(), [1, 8, 32, 16, 4] * 20, 0.005, 0.001, noise=0.2)
    assert noisy.seconds(32) == pytest.approx(0.037, rel=0.1)


def test_batches_of_one_size_say_nothing_about_the_slope() -> None:
    model = learn(LatencyModel(), [1] * 50, 0.005, 0.001)
    assert model.seconds(1) == pytest.approx(0.006)
    assert model.seconds(32) <= 32 * 0.006 + 1e-9  # the cautious side: all of it may be per image
    model = learn(LatencyModel(), [1, 32, 1, 32] + [8] * WINDOW * 3, 0.005, 0.001)
    assert model.seconds(32) == pytest.approx(0.037, rel=0.05), "what was learnt before is not forgotten"


def test_a_change_is_learnt_within_the_window_and_a_hiccup_is_not() -> None:
    model = learn(LatencyModel(), [1, 8, 32] * 30, 0.005, 0.001)
    learn_one(model, 8, 10.0)
    assert model.seconds(32) == pytest.approx(0.037, rel=0.25)
    learn(model, [1, 8, 32] * (WINDOW // 3 + 1), 0.050, 0.010)
    assert model.seconds(32) == pytest.approx(0.370, rel=0.15)
    learn(model, [1, 8, 32] * (WINDOW // 3 + 1), 0.050, 0.010)
    assert model.seconds(32) == pytest.approx(0.370, rel=0.02)


@pytest.mark.parametrize("sizes", [[1], [4, 4], [1, 2, 3], [32] * 10])
def test_no_part_is_ever_negative(sizes: list[int]) -> None:
    model = LatencyModel()
    for size in sizes:
        learn_one(model, size, 0.01 / size)  # the more, the faster: nonsense, or noise
        assert model.fixed_seconds >= 0
        assert model.per_item_seconds > 0
    model.learn(1, 0.0, 0.001, 0.001)
    assert model.seconds(1) >= 0


def test_the_largest_batch_fits_the_time() -> None:
    model = learn(LatencyModel(), [1, 8, 32, 16, 4] * 20, 0.005, 0.001)
    largest = model.max_items(0.025)
    assert model.seconds(largest) <= 0.025 < model.seconds(largest + 1)
    assert model.max_items(0.001) == 1
    assert model.num_in_time(32, 0.0105) == 5
    assert model.num_in_time(32, 0.001) == 32, "all of them are late anyway"
    assert model.num_in_time(32, 1.0) == 32


def test_the_stretch_follows_round_trips_and_ignores_the_first() -> None:
    model = LatencyModel()
    model.learn(1, 0.001, 1.0, 0.001)
    assert model.stretch == 1.0, "nothing was expected before the first batch"
    for _ in range(100):
        model.learn(1, 0.001, 0.002, 0.001)
    assert model.stretch == pytest.approx(2.0, rel=0.01)


def test_the_margin_covers_nearly_all_answers_within_its_bounds() -> None:
    model, chance = LatencyModel(), random.Random(0)
    for _ in range(10_000):
        model.learn_wait(1.0, chance.uniform(0, 2))
    assert 1.9 < model.margin < 2.2
    for _ in range(1000):
        model.learn_wait(1.0, 100.0)
    assert model.margin == MARGIN_BOUNDS[1]
