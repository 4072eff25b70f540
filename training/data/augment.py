"""Random changes to training images, a whole batch at a time."""

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from training.options.config import AugmentConfig


def random_affine(num_images: int, size: Sequence[int], config: AugmentConfig, generator: Generator) -> Tensor:
    """Return what is done to each of N images of that height and width: maps of output to input, [N, 2, 3]."""
    height, width = size

    def uniform(limit: float) -> Tensor:
        return (torch.rand(num_images, generator=generator) * 2 - 1) * limit

    angle = uniform(math.radians(config.rotation_degrees))
    shear = torch.tan(uniform(math.radians(config.shear_degrees)))
    scale = 1 + uniform(config.scaling)
    shift_x, shift_y = uniform(2 * config.translation), uniform(2 * config.translation)
    mirror = torch.where(uniform(1.0) < 0, -1.0, 1.0) if config.flip else torch.ones(num_images)
    # Maps output to input positions, in units of half a side; the aspect keeps a turn a turn where H is not W.
    aspect = height / width
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    first = torch.stack([cos * mirror, (cos * shear - sin) * aspect, shift_x], dim=1)
    second = torch.stack([sin * mirror / aspect, sin * shear + cos, shift_y], dim=1)
    return torch.stack([first, second], dim=1)


def warp(images: Tensor, theta: Tensor) -> Tensor:
    """Return float32 [N, C, H, W], each image moved by its map [N, 2, 3]; pixels from outside repeat the border."""
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
