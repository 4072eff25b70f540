"""The learning rate over a run."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, LRScheduler, OneCycleLR, SequentialLR

from training.options.config import TrainConfig

LEFT_AT_THE_END = 0.01  # of the learning rate, along an exponential without --gamma
LOWEST_MOMENTUM = 0.85 / 0.95  # of the highest, as published for one cycle


def build_schedule(optimizer: Optimizer, config: TrainConfig, steps_per_epoch: int) -> LRScheduler:
    """Return the schedule. The optimizer's learning rate is the peak; step the schedule after each optimizer step."""
    num_steps = config.epochs * steps_per_epoch
    num_rising = max(1, round(config.warmup * num_steps))  # the last of them has the whole rate
    match config.schedule:
        case "cosine":
            # The first cycle of Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5.
            fall: LRScheduler = CosineAnnealingLR(optimizer, max(1, num_steps - num_rising))
            return SequentialLR(optimizer, [_rise(optimizer, num_rising), fall], [num_rising])
        case "exponential":
            by_default = LEFT_AT_THE_END ** (1 / max(1, num_steps - num_rising))
            per_step = config.gamma ** (1 / steps_per_epoch) if config.gamma else by_default
            fall = ExponentialLR(optimizer, per_step)
            if num_rising == 1:
                return fall
            # The last step of the rise, which has the whole rate, is the first of the fall.
            return SequentialLR(optimizer, [_rise(optimizer, num_rising), fall], [num_rising - 1])
        case "one-cycle":
            # Torch divides by the steps after the first of those that rise.
            num_rising = max(2, num_rising)
            # Smith and Topin 2017 (arXiv 1708.07120), with torch's defaults for the two ends of the learning rate.
            return OneCycleLR(
                optimizer,
                max_lr=config.learning_rate,
                # One more: torch counts the rate after the last step, too.
                total_steps=num_steps + 1,
                pct_start=num_rising / (num_steps + 1),
                base_momentum=LOWEST_MOMENTUM * config.momentum,
                max_momentum=config.momentum,
            )


def _rise(optimizer: Optimizer, num_rising: int) -> LRScheduler:
    return LinearLR(optimizer, start_factor=1 / num_rising, total_iters=num_rising - 1)
