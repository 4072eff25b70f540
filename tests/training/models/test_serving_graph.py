"""What is exported is the network that was trained."""

import torch

from training.models.resnet import PaddedShortcut, build_model
from training.models.serving_graph import as_convolutions


def test_padded_shortcuts_as_convolutions_are_equal_to_the_bit() -> None:
    torch.manual_seed(0)
    model = build_model("resnet32", num_classes=5, channels=3).eval()
    images = torch.randn(4, 3, 31, 17)
    with torch.inference_mode():
        expected = model(images)
        replaced = as_convolutions(model)
        assert torch.equal(replaced(images), expected)
    assert not any(isinstance(module, PaddedShortcut) for module in replaced.modules())


def test_networks_without_padded_shortcuts_stay_as_they_are() -> None:
    model = build_model("resnet18", num_classes=5, channels=3)
    before = [name for name, _ in model.named_modules()]
    assert [name for name, _ in as_convolutions(model).named_modules()] == before
