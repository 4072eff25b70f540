"""The networks are those of the paper, take any images, and compile both ways."""

from typing import get_args

import pytest
import torch
from torch import nn

from training.models.resnet import PaddedShortcut, build_model
from training.options.config import Architecture, ResNetName


@pytest.mark.parametrize(
    ("architecture", "num_classes", "num_parameters"),
    [
        ("resnet20", 10, 269_722),
        ("resnet32", 10, 464_154),
        ("resnet56", 10, 853_018),
        ("resnet18", 1000, 11_689_512),
        ("resnet34", 1000, 21_797_672),
        ("resnet50", 1000, 25_557_032),
    ],
)
def test_parameter_counts_are_the_published_ones(
    architecture: Architecture, num_classes: int, num_parameters: int
) -> None:
    model = build_model(architecture, num_classes=num_classes, channels=3)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


@pytest.mark.parametrize("architecture", get_args(ResNetName))
def test_number_of_weighted_layers_is_in_the_name(architecture: ResNetName) -> None:
    model = build_model(architecture, num_classes=5, channels=3)
    # Projections are shortcuts, and the paper does not count them.
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and "shortcut" not in name
    ]
    assert len(layers) == int(architecture.removeprefix("resnet"))


@pytest.mark.parametrize(
    ("architecture", "num_classes", "channels", "height", "width"),
    [("resnet20", 2, 1, 28, 28), ("resnet32", 3, 2, 5, 1), ("resnet18", 7, 3, 33, 17), ("resnet50", 4, 1, 40, 9)],
)
def test_any_classes_channels_and_size_trace_and_script_alike(
    architecture: Architecture, num_classes: int, channels: int, height: int, width: int
) -> None:
    torch.manual_seed(0)
    model = build_model(architecture, num_classes=num_classes, channels=channels).eval()
    example = torch.randn(2, channels, height, width)
    traced = torch.jit.trace(model, example, check_trace=False)  # type: ignore[no-untyped-call]
    scripted = torch.jit.script(model)
    with torch.inference_mode():
        for batch_size in (1, 3):
            batch = torch.randn(batch_size, channels, height, width)
            logits = model(batch)
            assert logits.shape == (batch_size, num_classes)
            torch.testing.assert_close(traced(batch), logits, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(scripted(batch), logits, rtol=1e-5, atol=1e-5)


def test_padded_shortcut_subsamples_and_fills_with_zeros() -> None:
    images = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    out = PaddedShortcut(3, 8, stride=2)(images)
    assert out.shape == (2, 8, 2, 3)
    assert torch.equal(out[:, :3], images[:, :, ::2, ::2])
    assert not out[:, 3:].any()


def test_initial_weights_keep_the_variance_of_the_gradients() -> None:
    """He et al. 2015, equation 14: the variance is 2 / (k * k * out_channels)."""
    torch.manual_seed(0)
    model = build_model("resnet18", num_classes=10, channels=3)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
            assert float(module.weight.detach().var()) == pytest.approx(2 / fan_out, rel=0.05)
    assert not model.linear.bias.any()


def test_no_activation_is_shared() -> None:
    """Static quantization observes each activation by itself."""
    model = build_model("resnet50", num_classes=2, channels=3)
    num_uses = 1 + 3 * sum([3, 4, 6, 3])
    assert sum(isinstance(module, nn.ReLU) for module in model.modules()) == num_uses
