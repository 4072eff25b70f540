"""How many images are there at once, and what that means for the size of batches."""

import pytest

from service.batching.crowd import PeakConcurrency
from service.batching.latency_model import MOMENT_SECONDS, LatencyModel

PER_ITEM_SECONDS = 0.001


def test_it_rises_at_once_and_falls_slowly() -> None:
    crowd = PeakConcurrency()
    crowd.see(64)
    crowd.see(10)
    assert crowd.size == 64
    for _ in range(10):
        crowd.shrink(48)
    assert 60 < crowd.size < 62
    crowd.shrink(1000)
    assert 60 < crowd.size < 62, "a batch makes it no larger"
    for _ in range(1000):
        crowd.shrink(0)
    assert crowd.size < 1


def forecast_for(num_images: int, fixed_seconds: float = 0.0) -> LatencyModel:
    """Return a forecast for two workers that has learnt their cost and seen so many images."""
    forecast = LatencyModel(max_batch_size=32, latency_objective_ms=1000)
    forecast.set_capacity(2, 3)
    for num_items in (1, 8, 16, 32) * 8:
        expected = forecast.begin(num_items)
        seconds = fixed_seconds + PER_ITEM_SECONDS * num_items
        forecast.learn(expected, seconds, seconds)
        forecast.end(expected)
    forecast.see(num_images)
    return forecast


@pytest.mark.parametrize(
    ("num_images", "limit"), [(1, 8), (8, 8), (32, 8), (33, 16), (60, 16), (64, 16), (65, 24), (128, 32), (1000, 32)]
)
def test_each_worker_has_a_batch_to_go_on_with_and_limits_are_round(num_images: int, limit: int) -> None:
    assert forecast_for(num_images).limit_for(num_images // 2) == limit


def test_batches_that_cost_much_by_themselves_are_not_cut_short() -> None:
    fixed_seconds = 11 * PER_ITEM_SECONDS - MOMENT_SECONDS
    assert forecast_for(8, fixed_seconds).limit_for(4) == 24, "22 take twice what a batch costs by itself"


def test_those_that_wait_count_before_they_are_seen() -> None:
    forecast = forecast_for(1)
    forecast.begin(1)
    assert forecast.limit_for(256) == 32
    assert forecast.seconds_until(0, 256) == pytest.approx(256 * PER_ITEM_SECONDS / 2, rel=0.1)


def test_images_with_the_backend_are_there_too() -> None:
    forecast = forecast_for(0)
    first, second = forecast.begin(32), forecast.begin(16)
    forecast.see(16)
    assert forecast.limit_for(16) == 16
    forecast.end(first)
    forecast.end(second)
    assert forecast.limit_for(16) == 16, "they may well come back"
