"""The dynamically quantized variant: what is int8 in it, how far it strays, what its neighbours do to it."""

import torch
from torch import nn
from torch.ao.nn.quantized.dynamic import Linear

from training.artifacts import Run
from training.data.dataset import load_split
from training.evaluate import load_evaluation, predict
from training.quantize import load_variant, to_int8_dynamic


def test_only_the_linear_layer_is_quantized(exported: Run) -> None:
    model = load_variant(exported, "int8-dynamic")
    kinds = [type(module) for module in model.modules()]
    assert kinds.count(Linear) == 1
    assert kinds.count(nn.Linear) == 0
    assert kinds.count(nn.Conv2d) == 19


def test_the_original_is_left_alone(exported: Run) -> None:
    model = load_variant(exported, "fp32")
    images, _ = load_split(exported, "test")
    before = predict(model, images)
    quantized = predict(to_int8_dynamic(model), images)
    assert (predict(model, images) == before).all()
    assert 0 < abs(quantized - before).max() < 0.1


def test_derived_again_it_is_bit_equal(exported: Run) -> None:
    images, _ = load_split(exported, "test")
    first, second = (predict(load_variant(exported, "int8-dynamic"), images) for _ in range(2))
    assert (first == second).all()


def test_batch_dependence_is_measured(exported: Run) -> None:
    alone = load_evaluation(exported, "int8-dynamic").batch_dependence
    assert alone.batch_size == 32
    assert alone.num_samples == 60
    assert alone.max_abs_difference > 1e-5
    assert load_evaluation(exported, "fp32").batch_dependence.max_abs_difference < 1e-5


def test_one_scale_serves_the_whole_batch() -> None:
    """The cause of the dependence: a large neighbour coarsens the steps of a small one."""
    torch.manual_seed(0)
    layer = to_int8_dynamic(nn.Sequential(nn.Linear(8, 4)))
    small, large = torch.randn(1, 8), 100 * torch.randn(1, 8)
    assert not torch.equal(layer(small)[0], layer(torch.cat([small, large]))[0])
    assert torch.equal(layer(small)[0], layer(torch.cat([small, small]))[0])
