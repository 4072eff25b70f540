"""The ResNet family of He et al. 2015 (arXiv 1512.03385): the small ones of its section 4.2, the large ones of 4.1."""

from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.models.early_exit import EarlyExitResNet
from training.options.config import Architecture, ResNetName

Shortcut = Callable[[int, int, int], nn.Module]


class PaddedShortcut(nn.Module):
    """Option A of the paper: subsample, then fill the new channels with zeros; no parameters."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.stride = stride
        self.num_new_channels = out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        """[N, C_in, H, W] -> [N, C_out, ceil(H / stride), ceil(W / stride)]."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.num_new_channels))


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return option B of the paper: a 1x1 convolution that brings the input to the block's output shape."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (figure 5, left)."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = shortcut
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """[N, C_in, H, W] -> [N, width, ceil(H / stride), ceil(W / stride)]."""
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu2(y + self.shortcut(x))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut (figure 5, right); the stride sits on the 3x3, as in its successors."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, width * self.expansion, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.shortcut = shortcut
        self.relu3 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """[N, C_in, H, W] -> [N, 4 * width, ceil(H / stride), ceil(W / stride)]."""
        y = self.relu1(self.bn1(self.conv1(x)))
        y = self.relu2(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu3(y + self.shortcut(x))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A stem, groups of residual blocks, the mean over all positions, one linear layer; any height and width."""

    def __init__(self, stem: nn.Module, groups: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.stages = groups  # the name that weights files have
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(num_features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised float32 [N, C, H, W] -> logits float32 [N, num_classes]."""
        x = self.pool(self.stages(self.stem(x)))
        return self.linear(torch.flatten(x, 1))  # type: ignore[no-any-return]


@overload
def build_model(architecture: ResNetName, *, num_classes: int, channels: int) -> ResNet: ...
@overload
def build_model(architecture: Architecture, *, num_classes: int, channels: int) -> ResNet | EarlyExitResNet: ...
def build_model(architecture: Architecture, *, num_classes: int, channels: int) -> ResNet | EarlyExitResNet:
    """Return the named network, initialised from torch's global generator; height and width stay free."""
    model: ResNet | EarlyExitResNet
    match architecture:
        case "resnet20":
            model = _small(num_blocks=3, num_classes=num_classes, channels=channels)
        case "resnet32":
            model = _small(num_blocks=5, num_classes=num_classes, channels=channels)
        case "resnet56":
            model = _small(num_blocks=9, num_classes=num_classes, channels=channels)
        case "resnet18":
            model = _large(BasicBlock, [2, 2, 2, 2], num_classes=num_classes, channels=channels)
        case "resnet34":
            model = _large(BasicBlock, [3, 4, 6, 3], num_classes=num_classes, channels=channels)
        case "resnet50":
            model = _large(Bottleneck, [3, 4, 6, 3], num_classes=num_classes, channels=channels)
        case "resnet20-early-exit":
            model = _early_exit(num_classes=num_classes, channels=channels)
    _initialise(model)
    return model


def _small(num_blocks: int, num_classes: int, channels: int) -> ResNet:
    """The networks for CIFAR: 6n + 2 layers, widths 16, 32, 64, shortcuts without parameters."""
    stem = _small_stem(channels)
    groups = _groups(BasicBlock, [16, 32, 64], [num_blocks] * 3, in_channels=16, shortcut=PaddedShortcut)
    return ResNet(stem, groups, num_features=64, num_classes=num_classes)


def _early_exit(num_classes: int, channels: int) -> EarlyExitResNet:
    """One block of each width, then up to four turns of a block of the last: 7 to 15 weighted layers of resnet20's."""
    groups = _groups(BasicBlock, [16, 32, 64], [1] * 3, in_channels=16, shortcut=PaddedShortcut)
    return EarlyExitResNet(nn.Sequential(_small_stem(channels), groups), num_features=64, num_classes=num_classes)


def _small_stem(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, 16, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())


def _large(
    block: type[BasicBlock] | type[Bottleneck], num_blocks: list[int], num_classes: int, channels: int
) -> ResNet:
    """The networks for ImageNet (table 1): widths 64 to 512, projections where the shape changes."""
    stem = nn.Sequential(
        nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
    )
    groups = _groups(block, [64, 128, 256, 512], num_blocks, in_channels=64, shortcut=projection)
    return ResNet(stem, groups, num_features=512 * block.expansion, num_classes=num_classes)


def _groups(
    block: type[BasicBlock] | type[Bottleneck],
    widths: list[int],
    num_blocks: list[int],
    in_channels: int,
    shortcut: Shortcut,
) -> nn.Sequential:
    blocks: list[nn.Module] = []
    for group, (width, repeats) in enumerate(zip(widths, num_blocks, strict=True)):
        for position in range(repeats):
            stride = 2 if group > 0 and position == 0 else 1
            out_channels = width * block.expansion
            same_shape = stride == 1 and in_channels == out_channels
            way_round = nn.Identity() if same_shape else shortcut(in_channels, out_channels, stride)
            blocks.append(block(in_channels, width, stride, way_round))
            in_channels = out_channels
    return nn.Sequential(*blocks)


def _initialise(model: nn.Module) -> None:
    """He et al. 2015 (arXiv 1502.01852), equation 14: the variance of the gradients is kept through each ReLU."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            # No ReLU follows the last layer, so its gain is 1.
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            nn.init.zeros_(module.bias)
