"""The learning rate rises once and falls once."""

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch.optim import SGD

from training.engine.schedule import build_schedule
from training.options.config import Config, Schedule


def rates(
    config: Config, schedule: Schedule, *, steps_per_epoch: int = 25, warmup: float = 0.2, **others: Any
) -> tuple[list[float], list[float]]:
    """Learning rate and momentum of each step of 4 epochs."""
    options = replace(config.train, epochs=4, warmup=warmup, learning_rate=0.5, schedule=schedule, **others)
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=options.learning_rate, momentum=options.momentum)
    scheduler = build_schedule(optimizer, options, steps_per_epoch)
    learning_rates, momenta = [], []
    for _ in range(options.epochs * steps_per_epoch):
        learning_rates.append(float(optimizer.param_groups[0]["lr"]))
        momenta.append(float(optimizer.param_groups[0]["momentum"]))
        optimizer.step()
        scheduler.step()
    return learning_rates, momenta


@pytest.mark.parametrize("warmup", [0.001, 0.1, 0.25, 0.9, 0.999])
@pytest.mark.parametrize("steps_per_epoch", [1, 2, 5, 25])
@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_every_schedule_rises_to_the_learning_rate_and_then_falls(
    config: Config, schedule: Schedule, steps_per_epoch: int, warmup: float
) -> None:
    learning_rates, _ = rates(config, schedule, steps_per_epoch=steps_per_epoch, warmup=warmup)
    assert max(learning_rates) == pytest.approx(0.5)
    peak = learning_rates.index(max(learning_rates))
    assert learning_rates[: peak + 1] == sorted(learning_rates[: peak + 1])
    assert learning_rates[peak:] == sorted(learning_rates[peak:], reverse=True)


@pytest.mark.parametrize("warmup", [0.001, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("steps_per_epoch", [1, 2, 5, 25, 250])
@pytest.mark.parametrize("schedule", ["cosine", "exponential"])
def test_the_curve_is_the_formulas(config: Config, schedule: Schedule, steps_per_epoch: int, warmup: float) -> None:
    num_steps = 4 * steps_per_epoch
    num_rising = max(1, round(warmup * num_steps))
    num_falling = max(1, num_steps - num_rising)

    def factor(step: int) -> float:
        if step < num_rising:
            return (step + 1) / num_rising
        if schedule == "cosine":
            return (1 + math.cos(math.pi * min(1.0, (step - num_rising) / num_falling))) / 2
        return math.pow(0.01, (step - num_rising + 1) / num_falling)

    learning_rates, _ = rates(config, schedule, steps_per_epoch=steps_per_epoch, warmup=warmup)
    assert learning_rates == pytest.approx([0.5 * factor(step) for step in range(num_steps)], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 9, 19, 99])
def test_one_cycle_has_room_in_the_shortest_run(config: Config, num_steps: int) -> None:
    """Whatever part of it the warm-up is: torch divides by the steps that rise, but the first."""
    for warmup in (1 / (num_steps + 1), 0.5, num_steps / (num_steps + 1)):
        options = replace(config.train, epochs=1, schedule="one-cycle", warmup=warmup)
        build_schedule(SGD([torch.zeros(1, requires_grad=True)], momentum=0.9), options, steps_per_epoch=num_steps)


def test_exponential_falls_by_gamma_each_epoch_after_the_warmup(config: Config) -> None:
    learning_rates, momenta = rates(config, "exponential", gamma=0.5)
    expected = [0.5 * min((step + 1) / 20, 0.5 ** ((step - 19) / 25)) for step in range(100)]
    assert learning_rates == pytest.approx(expected)
    assert set(momenta) == {0.9}


def test_exponential_leaves_a_hundredth_by_default(config: Config) -> None:
    learning_rates, _ = rates(config, "exponential")
    assert learning_rates[-1] == pytest.approx(0.5 * 0.01)


def test_one_cycle_takes_the_momentum_the_other_way(config: Config) -> None:
    learning_rates, momenta = rates(config, "one-cycle")
    peak = learning_rates.index(max(learning_rates))
    assert max(learning_rates) == pytest.approx(0.5, rel=1e-3)
    assert learning_rates[0] == pytest.approx(0.5 / 25)
    assert learning_rates[-1] < 0.01 * learning_rates[0] * 25
    assert peak == 19
    assert momenta.index(min(momenta)) == peak
    assert momenta[0] == pytest.approx(0.9)
    assert min(momenta) == pytest.approx(0.9 * 0.85 / 0.95, rel=1e-3)
