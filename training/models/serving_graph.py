"""The module that is exported: pixels in, probabilities out, so that no constant lives outside the graph."""

import torch
from torch import Tensor, nn

from training.models.resnet import PaddedShortcut


class Normalize(nn.Module):
    """Pixels of 0 to 255 become float32 with mean 0 and deviation 1 per channel, as measured on the training split."""

    offset: Tensor
    scale: Tensor

    def __init__(self, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.register_buffer("offset", 255 * torch.tensor(mean).reshape(1, -1, 1, 1), persistent=False)
        self.register_buffer("scale", 255 * torch.tensor(std).reshape(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Uint8 or float [N, C, H, W], 0 to 255 -> float32 [N, C, H, W]."""
        return (images.float() - self.offset) / self.scale


class ServingGraph(nn.Module):
    """Normalisation, network and softmax in one."""

    def __init__(self, normalize: Normalize, network: nn.Module) -> None:
        super().__init__()
        self.normalize = normalize
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Uint8 [N, C, H, W] -> float32 probabilities [N, num_classes]; each row sums to 1."""
        return torch.softmax(self.network(self.normalize(images)), dim=1)


def as_convolutions(network: nn.Module) -> nn.Module:
    """Replace each padded shortcut inside by a convolution that gives the same numbers to the bit; return the network.

    Slicing and padding leave the layouts and the int8 in which convolutions are fast: around them, an optimised graph
    converts to and fro. A 1x1 convolution by the unit matrix stays inside, and merges with the addition behind it.
    """
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if isinstance(child, PaddedShortcut):
                setattr(parent, name, _unit_convolution(child))
    return network


def _unit_convolution(shortcut: PaddedShortcut) -> nn.Conv2d:
    in_channels = shortcut.in_channels
    convolution = nn.Conv2d(
        in_channels, in_channels + shortcut.num_new_channels, kernel_size=1, stride=shortcut.stride, bias=False
    )
    with torch.no_grad():
        nn.init.dirac_(convolution.weight)
    convolution.weight.requires_grad_(False)  # a constant, for who trains the network on
    return convolution
