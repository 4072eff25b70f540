"""Random changes to training images, a whole batch at a time."""

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from training.config import AugmentConfig


def augment(images: Tensor, config: AugmentConfig, generator: Generator) -> Tensor:
    """Return float32 [N, C, H, W], each image turned, slanted, scaled, shifted and mirrored by chance, on its own.

    Pixels that come from outside repeat the border.
    """
    num_images, _, height, width = images.shape

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
    theta = torch.stack([first, second], dim=1)  # [N, 2, 3]
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
