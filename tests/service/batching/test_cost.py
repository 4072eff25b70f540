"""The cost model learns what a batch takes, from whatever sizes come, and does not fall for a hiccup."""

import random

import pytest

from service.batching.cost import WINDOW, CostModel


def learn(model: CostModel, sizes: list[int], fixed: float, per_item: float, noise: float = 0.0) -> CostModel:
    chance = random.Random(0)
    for size in sizes:
        model.learn(size, (fixed + per_item * size) * (1 + noise * chance.uniform(-1, 1)))
    return model


def test_it_finds_both_parts() -> None:
    model = learn(CostModel(), [1, 8, 32, 16, 4] * 20, 0.005, 0.001)
    assert model.fixed_seconds == pytest.approx(0.005, rel=0.02)
    assert model.per_item_seconds == pytest.approx(0.001, rel=0.02)
    noisy = learn(CostModel(), [1, 8, 32, 16, 4] * 20, 0.005, 0.001, noise=0.2)
    assert noisy.seconds(32) == pytest.approx(0.037, rel=0.1)


def test_batches_of_one_size_say_nothing_about_the_slope() -> None:
    model = learn(CostModel(), [1] * 50, 0.005, 0.001)
    assert model.seconds(1) == pytest.approx(0.006)
    assert model.seconds(32) <= 32 * 0.006 + 1e-9  # the cautious side: all of it may be per image
    model = learn(CostModel(), [1, 32, 1, 32] + [8] * WINDOW * 3, 0.005, 0.001)
    assert model.seconds(32) == pytest.approx(0.037, rel=0.05), "what was learnt before is not forgotten"


def test_a_change_is_learnt_within_the_window_and_a_hiccup_is_not() -> None:
    model = learn(CostModel(), [1, 8, 32] * 30, 0.005, 0.001)
    model.learn(8, 10.0)
    assert model.seconds(32) == pytest.approx(0.037, rel=0.25)
    learn(model, [1, 8, 32] * (WINDOW // 3 + 1), 0.050, 0.010)
    assert model.seconds(32) == pytest.approx(0.370, rel=0.15)
    learn(model, [1, 8, 32] * (WINDOW // 3 + 1), 0.050, 0.010)
    assert model.seconds(32) == pytest.approx(0.370, rel=0.02)


@pytest.mark.parametrize("sizes", [[1], [4, 4], [1, 2, 3], [32] * 10])
def test_no_part_is_ever_negative(sizes: list[int]) -> None:
    model = CostModel()
    for size in sizes:
        model.learn(size, 0.01 / size)  # the more, the faster: nonsense, or noise
        assert model.fixed_seconds >= 0
        assert model.per_item_seconds > 0
    model.learn(1, 0.0)
    assert model.seconds(1) >= 0


def test_the_limit_fits_the_time_and_stays_efficient() -> None:
    model = learn(CostModel(), [1, 8, 32, 16, 4] * 20, 0.005, 0.001)
    limit = model.limit(0.025)
    assert model.seconds(limit) <= 0.025 < model.seconds(limit + 1)
    assert model.limit(0.001) == pytest.approx(5, abs=1), "half of the time may be fixed, not more"
    no_fixed_part = learn(CostModel(), [1, 8, 32, 16, 4] * 20, 0.0, 0.030)
    assert no_fixed_part.limit(0.001) == 1
