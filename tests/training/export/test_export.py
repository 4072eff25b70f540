"""Graphs answer like the eager model, or there are none."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from training.artifacts import VARIANTS, Run, Variant
from training.data.dataset import load_split
from training.errors import CompileError, ParityError
from training.export.compile import compile_graph
from training.export.export import check_parity, export_variant, load_graph_card
from training.export.graph_file import load_compiled
from training.int8.quantize import load_variant
from training.options.config import Compile, ExportConfig


@pytest.fixture
def own(exported: Run, tmp_path: Path) -> Run:
    """A run whose graphs a test may replace."""
    run = Run(tmp_path / "own")
    run.folder.mkdir()
    for name in ("data", "config.json", "weights.pt", "weights.json"):
        (run.folder / name).symlink_to(exported.folder / name)
    return run


def test_a_list_at_the_address_of_a_builtin_that_is_gone_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3)).eval()
    address = id(model[0]._reversed_padding_repeated_twice)
    table = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    monkeypatch.setitem(table, address, "aten::add")
    images = torch.zeros(2, 1, 8, 8)
    assert compile_graph(model, "script", images)(images).shape == (2, 2, 6, 6)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("method", ["trace", "script"])
def test_graph_takes_pixels_and_answers_like_the_eager_model(own: Run, variant: Variant, method: Compile) -> None:
    card = export_variant(own, variant, ExportConfig(compile=method))
    assert card == load_graph_card(own, variant)
    assert card.parity.max_abs_difference <= card.parity.tolerance == 1e-5
    assert card.parity.batch_sizes == [1, 2, 7, 32]
    graph, model = load_compiled(own.graph(variant)), load_variant(own, variant)
    images, _ = load_split(own, "test")
    with torch.inference_mode():
        for batch_size in (1, 5, 60):
            batch = images[:batch_size]
            probabilities = graph(batch)
            assert probabilities.dtype == torch.float32
            torch.testing.assert_close(probabilities, model(batch), rtol=0, atol=1e-6)
            torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(batch_size))


def test_normalisation_is_inside_the_graph(exported: Run) -> None:
    graph = load_compiled(exported.graph("fp32"))
    images, _ = load_split(exported, "test")
    model = load_variant(exported, "fp32")
    pixels = images[:3].float()
    expected = torch.softmax(model.network((pixels - model.normalize.offset) / model.normalize.scale), dim=1)  # type: ignore[operator, union-attr]
    torch.testing.assert_close(graph(images[:3]), expected, rtol=0, atol=1e-6)


class Doubled(nn.Module):
    """Answers differently in one batch size: what a graph does that has the size of its example baked in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        answers: Tensor = self.model(images)
        return answers + 1e-3 if len(images) == 7 else answers


def test_broken_parity_stops_the_export(own: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: nn.Module, *_: object) -> object:
        return torch.jit.script(Doubled(torch.jit.script(model)))

    monkeypatch.setattr("training.export.export.compile_graph", broken)
    with pytest.raises(ParityError, match=r"by 0\.001 on a batch of 7; allowed is 1e-05"):
        export_variant(own, "fp32", ExportConfig())
    assert not own.graph("fp32").exists()
    assert not own.graph_card("fp32").exists()


def test_not_a_number_is_no_parity(exported: Run) -> None:
    images, _ = load_split(exported, "validation")
    model = load_variant(exported, "fp32")
    with pytest.raises(ParityError, match="nan"):
        check_parity(lambda batch: model(batch) * float("nan"), model, images)


class Branching(nn.Module):
    """What it does depends on the pixels, and a trace cannot hold that."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float() if bool(images.sum() > 0) else -images.float()


def test_trace_refuses_what_it_cannot_record() -> None:
    with pytest.raises(CompileError, match="--compile script"):
        compile_graph(Branching(), "trace", torch.ones(2, 1, 4, 4))
    assert compile_graph(Branching(), "script", torch.ones(2, 1, 4, 4)) is not None
