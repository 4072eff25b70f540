"""The learning rate rises once and falls once."""

import pytest

from training.schedule import warmup_then_cosine


@pytest.mark.parametrize(("num_steps", "warmup"), [(100, 0.15), (7, 0.5), (2, 0.5)])
def test_rises_to_the_full_rate_then_falls_towards_zero(num_steps: int, warmup: float) -> None:
    factor = warmup_then_cosine(num_steps, warmup)
    factors = [factor(step) for step in range(num_steps)]
    peak = factors.index(max(factors))
    assert max(factors) == 1
    assert factors[:peak] == sorted(factors[:peak])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert factors[0] > 0
    assert factor(num_steps) == pytest.approx(0)


def test_a_single_step_has_the_full_rate() -> None:
    assert warmup_then_cosine(1, 0.1)(0) == 1


def test_warmup_is_linear_and_the_cosine_is_half_way_down_in_its_middle() -> None:
    factor = warmup_then_cosine(100, 0.2)
    assert [factor(step) for step in (0, 9, 19)] == pytest.approx([0.05, 0.5, 1])
    assert factor(60) == pytest.approx(0.5)
