"""Accuracy of int8 against fp32: differences are of the same images, and their intervals are the published ones."""

import numpy as np
import pytest

from benchmarks.training.int8_accuracy import difference, markdown, paired_interval


def right(*indices: int, num_images: int = 100) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    answers = np.ones(num_images, dtype=np.bool_)
    answers[list(indices)] = False
    return answers


def test_differences_are_of_the_same_images() -> None:
    seeds = [
        {"fp32": right(1, 2), "int8-qat": right(1)},
        {"fp32": right(3), "int8-qat": right(4)},
        {"fp32": right(), "int8-qat": right()},
    ]
    found = difference(seeds, "int8-qat", "fp32")
    assert found.over_seeds["differences"] == pytest.approx([1.0, 0.0, 0.0])
    assert found.over_seeds["mean"] == pytest.approx(1 / 3)
    assert (found.num_gained, found.num_lost) == (2, 1)
    assert found.over_seeds["low"] < 0 < found.over_seeds["high"]
    assert found.images_low < found.over_seeds["mean"] < found.images_high


def test_the_interval_over_images_has_a_width_where_nothing_changed() -> None:
    low, high = paired_interval(0, 0, 3000)
    assert -high == pytest.approx(low)
    assert 0.0005 < high < 0.001


def test_the_interval_is_walds_where_there_are_many() -> None:
    low, high = paired_interval(3000, 1000, 100_000)
    reach = 1.959964 * np.sqrt((0.03 + 0.01 - 0.02**2) / 100_000)
    assert (low, high) == pytest.approx((0.02 - reach, 0.02 + reach), rel=1e-2)


def test_the_table_has_the_mean_over_seeds() -> None:
    seeds = [{name: right(*range(number)) for name in ("fp32", "int8-static", "int8-qat")} for number in (1, 3)]
    text = markdown((0, 1), seeds, [difference(seeds, "int8-qat", "int8-static")])
    assert "| 0 | 99.00 % | 99.00 % | 99.00 % |" in text
    assert "| mean | 98.00 % | 98.00 % | 98.00 % |" in text
    assert "| int8-qat - int8-static | +0.00 | +0.00 to +0.00 |" in text
