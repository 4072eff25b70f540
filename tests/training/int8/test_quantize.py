"""The quantized variants: what is int8 in them, how far they stray, what their neighbours do to them."""

from typing import get_args

import pytest
import torch
from torch import nn
from torch.ao.nn import quantized
from torch.ao.nn.intrinsic import quantized as fused
from torch.ao.nn.quantized import dynamic

from training.artifacts import Run, Variant
from training.data.dataset import load_split
from training.evaluation.evaluate import load_evaluation, predict
from training.evaluation.threads import one_thread
from training.export.compile import compile_graph
from training.export.export import check_parity
from training.int8.quantize import QUANTIZED, calibration_images, load_variant, to_int8_dynamic, to_int8_static
from training.models.resnet import build_model
from training.models.serving_graph import Normalize, ServingGraph, as_convolutions
from training.options.config import Architecture, Compile, ResNetName


def untrained(architecture: Architecture, channels: int) -> ServingGraph:
    torch.manual_seed(0)
    network = as_convolutions(build_model(architecture, num_classes=5, channels=channels))
    return ServingGraph(Normalize([0.4] * channels, [0.3] * channels), network).eval()


def pixels(num_images: int, channels: int, side: int) -> torch.Tensor:
    return torch.randint(
        0, 256, (num_images, channels, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )


def test_only_the_linear_layer_is_dynamic(exported: Run) -> None:
    kinds = [type(module) for module in load_variant(exported, "int8-dynamic").modules()]
    assert kinds.count(dynamic.Linear) == 1
    assert kinds.count(nn.Linear) == 0
    assert kinds.count(nn.Conv2d) == 21


def test_every_layer_is_static_and_batch_normalisation_is_part_of_it(exported: Run) -> None:
    kinds = [type(module) for module in load_variant(exported, "int8-static").modules()]
    assert kinds.count(fused.ConvReLU2d) == 10  # the stem and the first of each block
    assert kinds.count(quantized.Conv2d) == 9 + 2  # the second of each, and the shortcuts that change the shape
    assert kinds.count(quantized.Linear) == 1
    assert not {nn.Conv2d, nn.BatchNorm2d, nn.Linear, nn.ReLU} & set(kinds)


def test_static_additions_are_fused_and_nothing_goes_back_to_float_on_the_way(exported: Run) -> None:
    network = load_variant(exported, "int8-static").network
    code = str(network.code)  # type: ignore[union-attr]
    assert code.count("quantized.add_relu(") == 9
    assert code.count("quantize_per_tensor(") == 1
    assert code.count(".dequantize()") == 1


@pytest.mark.parametrize("variant", QUANTIZED)
def test_the_original_is_left_alone(exported: Run, variant: Variant) -> None:
    model = load_variant(exported, "fp32")
    assert isinstance(model, ServingGraph)
    images, _ = load_split(exported, "test")
    before = predict(model, images)
    made = to_int8_dynamic(model) if variant == "int8-dynamic" else to_int8_static(model, images)
    quantized_answers = predict(made, images)
    assert (predict(model, images) == before).all()
    assert 0 < abs(quantized_answers - before).max() < 0.1


@pytest.mark.parametrize("variant", QUANTIZED)
def test_derived_again_it_is_bit_equal(exported: Run, variant: Variant) -> None:
    images, _ = load_split(exported, "test")
    with one_thread():
        first = predict(load_variant(exported, variant), images)
    torch.set_num_threads(2)
    try:
        again = load_variant(exported, variant)
    finally:
        torch.set_num_threads(1)
    assert (predict(again, images) == first).all()


def test_batch_dependence_is_measured(exported: Run) -> None:
    alone = load_evaluation(exported, "int8-dynamic").batch_dependence
    assert alone.batch_size == 32
    assert alone.num_samples == 60
    rounding = load_evaluation(exported, "fp32").batch_dependence.max_abs_difference
    assert rounding < 1e-5
    # How certain the model is decides how large both are, and the processor decides that.
    assert alone.max_abs_difference > 10 * rounding
    assert load_evaluation(exported, "int8-static").batch_dependence.max_abs_difference == 0


@pytest.mark.parametrize(("architecture", "channels"), list(zip(get_args(ResNetName), [1, 3] * 3, strict=True)))
def test_static_answers_do_not_depend_on_their_batch_mates(architecture: Architecture, channels: int) -> None:
    """To the bit: scales are fixed, integers sum exactly in any order."""
    images = pixels(12, channels, 20)
    model = to_int8_static(untrained(architecture, channels), images)
    together = predict(model, images)
    assert (predict(model, images, batch_size=1) == together).all()
    assert (predict(model, images, batch_size=5) == together).all()
    assert (predict(model, images.flip(0))[::-1] == together).all()


@pytest.mark.parametrize("method", ["trace", "script"])
@pytest.mark.parametrize(("architecture", "channels"), [("resnet32", 3), ("resnet50", 1)])
def test_static_graphs_of_any_network_answer_like_the_eager_one(
    architecture: Architecture, channels: int, method: Compile
) -> None:
    images = pixels(8, channels, 20)
    model = to_int8_static(untrained(architecture, channels), images)
    assert check_parity(compile_graph(model, method, images[:2]), model, images).max_abs_difference == 0


def test_calibration_sees_training_images_from_all_over(exported: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    images, _ = load_split(exported, "train")
    assert torch.equal(calibration_images(exported), images)
    monkeypatch.setattr("training.int8.quantize.NUM_CALIBRATION_IMAGES", 70)
    assert torch.equal(calibration_images(exported), images[::3])


def test_one_dynamic_scale_serves_the_whole_batch() -> None:
    """The cause of the dependence: a large neighbour coarsens the steps of a small one."""
    torch.manual_seed(0)
    layer = to_int8_dynamic(nn.Sequential(nn.Linear(8, 4)))
    small, large = torch.randn(1, 8), 100 * torch.randn(1, 8)
    assert not torch.equal(layer(small)[0], layer(torch.cat([small, large]))[0])
    assert torch.equal(layer(small)[0], layer(torch.cat([small, small]))[0])
