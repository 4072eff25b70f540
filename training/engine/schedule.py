"""The learning rate over a run."""

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from training.options.config import TrainConfig

LEFT_AT_THE_END = 0.01  # of the learning rate, along an exponential without --gamma
LOWEST_MOMENTUM = 0.85 / 0.95  # of the highest, as published for one cycle


def build_schedule(optimizer: Optimizer, config: TrainConfig, steps_per_epoch: int) -> LRScheduler:
    """Return the schedule of an optimizer whose learning rate is its largest; it is stepped after each of its steps."""
    num_steps = config.epochs * steps_per_epoch
    match config.schedule:
        case "cosine":
            return LambdaLR(optimizer, warmup_then_cosine(num_steps, config.warmup))
        case "exponential":
            num_warmup_steps = num_warmup(num_steps, config.warmup)
            by_default = LEFT_AT_THE_END ** (1 / max(1, num_steps - num_warmup_steps))
            per_step = config.gamma ** (1 / steps_per_epoch) if config.gamma else by_default
            return LambdaLR(optimizer, warmup_then(num_warmup_steps, lambda step: per_step ** (step + 1)))
        case "one-cycle":
            # Torch divides by the steps after the first of those that rise.
            num_warmup_steps = max(2, num_warmup(num_steps, config.warmup))
            # Smith and Topin 2017 (arXiv 1708.07120), with torch's defaults for the two ends of the learning rate.
            return OneCycleLR(
                optimizer,
                max_lr=config.learning_rate,
                # One more: torch counts the rate after the last step, too.
                total_steps=num_steps + 1,
                pct_start=num_warmup_steps / (num_steps + 1),
                base_momentum=LOWEST_MOMENTUM * config.momentum,
                max_momentum=config.momentum,
            )


def num_warmup(num_steps: int, warmup: float) -> int:
    """Return the steps of a run during which the learning rate rises; the last of them has all of it."""
    return max(1, round(warmup * num_steps))


def warmup_then(num_warmup_steps: int, fall: Callable[[int], float]) -> Callable[[int], float]:
    """Return the factor of the learning rate at a step: a linear rise, then what `fall` gives at 0, 1 and so on."""

    def factor(step: int) -> float:
        return (step + 1) / num_warmup_steps if step < num_warmup_steps else fall(step - num_warmup_steps)

    return factor


def warmup_then_cosine(num_steps: int, warmup: float) -> Callable[[int], float]:
    """Return the factor of the learning rate at a step: a linear rise over the fraction `warmup`, then half a cosine.

    The cosine is the first cycle of Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5.
    """
    num_warmup_steps = num_warmup(num_steps, warmup)
    num_others = max(1, num_steps - num_warmup_steps)
    return warmup_then(num_warmup_steps, lambda step: (1 + math.cos(math.pi * min(1.0, step / num_others))) / 2)
