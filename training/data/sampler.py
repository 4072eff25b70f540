"""In which order an epoch takes the training images."""

import torch
from torch import Generator, Tensor
from torch.utils.data import WeightedRandomSampler

from training.options.config import Sampler


def draw_order(labels: Tensor, sampler: Sampler, generator: Generator) -> Tensor:
    """Return as many indices, int64 [N], as there are labels; the generator decides.

    random is a permutation. balanced draws with replacement, each class with the same probability: a rare class's
    images come several times, a frequent one's not all of them.
    """
    match sampler:
        case "random":
            return torch.randperm(len(labels), generator=generator)
        case "balanced":
            weights = 1 / torch.bincount(labels).double()[labels]
            drawn = WeightedRandomSampler(weights.tolist(), len(labels), replacement=True, generator=generator)
            return torch.tensor(list(drawn))
