"""A loop whose length the images decide: script and the mix keep it, a trace freezes it."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.nn import quantized
from torch.fx import symbolic_trace
from torch.jit._trace import TracerWarning

from training.errors import CompileError
from training.export.compile import compile_graph
from training.export.export import check_parity
from training.int8.fx_layers import with_plain_scales
from training.int8.qat import fake_quantized, to_int8
from training.int8.quantize import to_int8_dynamic, to_int8_static
from training.models.early_exit import MOST_TURNS, EarlyExitResNet, SharedBlock
from training.models.resnet import build_model
from training.models.serving_graph import Normalize, ServingGraph, as_convolutions
from training.options.config import Compile


@pytest.fixture
def images() -> Tensor:
    return torch.randint(0, 256, (24, 1, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def model(images: Tensor) -> ServingGraph:
    """Untrained, its threshold in the middle of the first exit's confidences: half of the images leave there."""
    torch.manual_seed(0)
    network = build_model("resnet20-early-exit", num_classes=5, channels=1)
    assert isinstance(network, EarlyExitResNet)
    graph = ServingGraph(Normalize([0.5], [0.3]), as_convolutions(network)).eval()
    network.most_turns = 0
    with torch.inference_mode():
        network.confidence = float(graph(images).amax(dim=1).median()) + 1e-4
    network.most_turns = MOST_TURNS
    return graph


class Turns:
    """Counts how often a module is called."""

    def __init__(self, module: nn.Module) -> None:
        self.sizes: list[int] = []
        module.register_forward_pre_hook(lambda _, inputs: self.sizes.append(len(inputs[0])))


def network_of(model: ServingGraph) -> EarlyExitResNet:
    assert isinstance(model.network, EarlyExitResNet)
    return model.network


def test_each_image_takes_the_turns_that_it_needs(model: ServingGraph, images: Tensor) -> None:
    turns = Turns(network_of(model).block)
    with torch.inference_mode():
        together = model(images)
        assert 0 < turns.sizes[0] < len(images)
        assert turns.sizes == sorted(turns.sizes, reverse=True)
        alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-6)
    network_of(model).confidence = 0.0
    turns.sizes.clear()
    model(images)
    assert turns.sizes == []


@pytest.mark.parametrize("method", ["script", "mixed"])
def test_compiled_it_keeps_its_loop(model: ServingGraph, images: Tensor, method: Compile) -> None:
    graph = compile_graph(model, method, images[:2])
    inlined = graph.inlined_graph
    assert len(inlined.findAllNodes("prim::Loop")) >= 1
    assert check_parity(graph, model, images).max_abs_difference <= 1e-6
    # The very same graph, another number of turns: the loop is in there, not a record of it.
    graph.network.most_turns = 0
    network_of(model).most_turns = 0
    with torch.inference_mode():
        torch.testing.assert_close(graph(images), model(images), rtol=0, atol=1e-6)


def test_mixed_traces_what_is_inside_the_loop(model: ServingGraph, images: Tensor) -> None:
    network: Any = compile_graph(model, "mixed", images[:2]).network
    assert all("Traced" in type(part).__name__ for part in (network.body, network.block, network.exit))
    assert "Traced" not in type(network).__name__


def test_a_trace_would_freeze_the_loop_and_is_refused(model: ServingGraph, images: Tensor) -> None:
    with pytest.raises(CompileError, match=r"early_exit\.py:\d+: `.*--compile script or mixed"):
        compile_graph(model, "trace", images[:2])
    # What it would have made: as many turns as its example took, whatever comes.
    never_sure = copy.deepcopy(model)
    network_of(never_sure).confidence = 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracerWarning)
        frozen = torch.jit.trace(never_sure, images[:2], check_trace=False)  # type: ignore[no-untyped-call]
        sure = torch.jit.trace(  # type: ignore[no-untyped-call]
            _with_confidence(model, 0.0), images[:2], check_trace=False
        )
    unrolled, none = frozen.inlined_graph, sure.inlined_graph
    assert not unrolled.findAllNodes("prim::Loop")
    assert len(unrolled.findAllNodes("aten::group_norm")) == 2 * MOST_TURNS
    assert not none.findAllNodes("aten::group_norm")
    with torch.inference_mode():
        assert float((sure(images) - model(images)).abs().max()) > 1e-3


def _with_confidence(model: ServingGraph, confidence: float) -> ServingGraph:
    changed = copy.deepcopy(model)
    network_of(changed).confidence = confidence
    return changed


def test_every_exit_learns(model: ServingGraph, images: Tensor) -> None:
    network = network_of(model).train()
    logits = network(model.normalize(images))
    # Each image's answer is that of its own exit, and the exits take the images in turn.
    x = network.body(model.normalize(images))
    for turn in range(MOST_TURNS + 1):
        mine = torch.arange(len(images)) % (MOST_TURNS + 1) == turn
        torch.testing.assert_close(logits[mine], network.exit(x)[mine], rtol=1e-4, atol=1e-4)
        x = network.block(x)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("method", ["script", "mixed"])
def test_its_int8_variants_compile_alike(model: ServingGraph, images: Tensor, method: Compile) -> None:
    for variant in (to_int8_static(model, images), to_int8_dynamic(model), trained_on(model, images)):
        graph = compile_graph(variant.eval(), method, images[:2])
        assert check_parity(graph, variant, images).max_abs_difference <= 1e-5


def trained_on(model: ServingGraph, images: Tensor) -> ServingGraph:
    """As quantization-aware training leaves it, its ranges of one step."""
    network = fake_quantized(model)
    network(model.normalize(images)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters() if parameter.requires_grad)
    return ServingGraph(model.normalize, to_int8(network)).eval()


@pytest.mark.parametrize("make", [to_int8_static, trained_on])
def test_what_lies_before_the_loop_is_int8_and_the_exits_are_chosen_image_by_image(
    model: ServingGraph, images: Tensor, make: Callable[[ServingGraph, Tensor], ServingGraph]
) -> None:
    made = make(model, images)
    network = network_of(made)
    int8_parts = {
        name.split(".")[0] for name, module in network.named_modules() if isinstance(module, quantized.Conv2d)
    }
    assert int8_parts == {"body"}
    assert not any(isinstance(module, nn.Conv2d) for module in network.body.modules())
    turns = Turns(network.block)
    with torch.inference_mode():
        together = made(images)
        assert 0 < turns.sizes[0] < len(images)
        alone = torch.cat([made(image[None]) for image in images])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-6)


def test_weights_are_not_taken_for_scales() -> None:
    with pytest.raises(AssertionError, match=r"norm1\.weight is no scale"):
        with_plain_scales(symbolic_trace(SharedBlock(8)))
