"""What cannot be compiled is named by its line, with what to write instead; trace, script and the mix of both agree."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from training.artifacts import Run
from training.data.dataset import load_split
from training.errors import CompileError
from training.export.compile import compile_graph, export_program
from training.int8.quantize import load_variant
from training.models.serving_graph import Normalize, ServingGraph
from training.options.config import Compile

IMAGES = torch.ones(2, 1, 4, 4, dtype=torch.uint8)


class Catching(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        try:  # culprit
            return images.float()
        except ValueError:
            return images


class Untyped(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        sizes = []
        for size in range(3):
            sizes.append(size)  # noqa: PERF402 - culprit
        return images.float() * sum(sizes)


class UntypedAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = {}  # type: ignore[var-annotated]

    def forward(self, images: Tensor) -> Tensor:
        self.table["seen"] = images  # culprit
        return images.float()


class Variadic(nn.Module):
    def forward(self, images: Tensor, *_: Tensor) -> Tensor:  # culprit
        return images.float()


class HalfAssigned(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        if images.size(0) > 1:  # culprit
            found = images.float()
        return found


class Anonymous(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        double = lambda x: 2 * x  # noqa: E731 - culprit
        answer: Tensor = double(images.float())  # type: ignore[no-untyped-call]
        return answer


class Maybe(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        found = None
        if images.size(0) > 1:
            found = images.float()  # culprit
        assert found is not None
        return found


class Indexing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1)])

    def forward(self, images: Tensor) -> Tensor:
        x: Tensor = self.layers[images.size(0) - 1](images.float())  # culprit
        return x


class Branching(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        if bool(images.sum() > 0):  # culprit
            return images.float()
        return -images.float()


class Counting(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.float() * int(images.sum())  # culprit


class Numpy(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(images.numpy() + 1)  # culprit


def culprit(model: type[nn.Module]) -> int:
    """Return the number of the line that the class marks."""
    lines = Path(__file__).read_text().splitlines()
    start = lines.index(f"class {model.__name__}(nn.Module):")
    return next(number for number, line in enumerate(lines, 1) if number > start and "culprit" in line)


@pytest.mark.parametrize(
    ("model", "method", "advice"),
    [
        (Catching, "script", "test beforehand for what may fail"),
        (Untyped, "script", r"say what the container holds: sizes: list\[int\] = \[\]"),
        (UntypedAttribute, "script", "say what the container holds"),
        (Variadic, "script", "name each argument, with its type"),
        (HalfAssigned, "script", "assign it before the branch"),
        (Anonymous, "script", "define a function with typed arguments"),
        (Maybe, "script", r"y: Tensor \| None = None"),
        (Indexing, "script", "for layer in self.layers"),
        (Numpy, "script", "stay in torch"),
        (Branching, "trace", r"torch.where\(condition, a, b\), or keep the branch with --compile script or mixed"),
        (Counting, "trace", r"torch.where\(condition, a, b\)"),
        (Numpy, "trace", "stay in torch"),
        (Branching, "mixed", "torch.where"),
    ],
)
def test_the_line_is_named_and_what_to_write_instead(model: type[nn.Module], method: Compile, advice: str) -> None:
    with pytest.raises(CompileError, match=advice) as refused:
        compile_graph(ServingGraph(Normalize([0.0], [1.0]), model()).eval(), method, IMAGES)
    message = str(refused.value)
    assert message.startswith(f"{__file__}:{culprit(model)}: `")
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("model", [Branching, Counting])
def test_torch_export_names_the_line_too(model: type[nn.Module], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CompileError, match=r"torch.where\(condition, a, b\); .* without --aoti and --onnx") as refused:
        export_program(model().eval(), IMAGES)
    assert str(refused.value).startswith(f"{__file__}:{culprit(model)}: `")
    assert capfd.readouterr() == ("", "")


def test_what_is_only_script_s_to_keep_compiles_there() -> None:
    graph = compile_graph(Branching().eval(), "script", IMAGES)
    assert torch.equal(graph(IMAGES), IMAGES.float())
    assert torch.equal(graph(-IMAGES.float()), IMAGES.float())


def test_a_network_without_control_flow_is_traced_whole_when_mixed(exported: Run) -> None:
    images, _ = load_split(exported, "test")
    model = load_variant(exported, "fp32")
    graph = compile_graph(model, "mixed", images[:2])
    assert "Traced" in type(graph.network).__name__
    assert "Script" in type(graph).__name__
    with torch.inference_mode():
        for size in (1, 5, 60):
            torch.testing.assert_close(graph(images[:size]), model(images[:size]), rtol=0, atol=1e-6)
