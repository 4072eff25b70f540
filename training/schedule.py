"""The learning rate over a run."""

import math
from collections.abc import Callable


def warmup_then_cosine(num_steps: int, warmup: float) -> Callable[[int], float]:
    """Return the factor of the learning rate at a step: a linear rise over the fraction `warmup`, then half a cosine.

    The cosine is the first cycle of Loshchilov and Hutter 2017 (arXiv 1608.03983), equation 5.
    """
    num_warmup_steps = max(1, round(warmup * num_steps))

    def factor(step: int) -> float:
        if step < num_warmup_steps:
            return (step + 1) / num_warmup_steps
        progress = (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)
        return (1 + math.cos(math.pi * min(1.0, progress))) / 2

    return factor
