"""The ONNX file answers like the eager model, in any batch, or there is none."""

import shutil
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from training.artifacts import Run, read_json, sha256
from training.data.dataset import load_split
from training.errors import CompileError, ParityError, SettingError
from training.export import export as stage
from training.export import onnx_file, variants_table
from training.export.export import load_graph_card
from training.export.onnx_file import check_packages, export_onnx, max_difference
from training.int8.quantize import load_variant
from training.models.weights import load_card
from training.options.config import ExportConfig


@pytest.fixture(scope="module")
def run(exported: Run) -> Run:
    images, _ = load_split(exported, "validation")
    export_onnx(exported, load_variant(exported, "fp32"), images)
    return exported


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_onnx_runtime_answers_64_images_like_the_eager_model_in_any_batch(run: Run) -> None:
    images = torch.cat([load_split(run, "test")[0], load_split(run, "validation")[0]])[:64]
    assert len(images) == 64
    assert max_difference(session(run.onnx), load_variant(run, "fp32"), images) <= 1e-5
    card = read_json(run.onnx_card, written_by="export --onnx")
    assert card["max_abs_difference"] <= card["tolerance"] == 1e-5
    assert card["sha256"] == sha256(run.onnx)
    assert card["weights_sha256"] == load_card(run).sha256
    assert card["num_images"] == len(load_split(run, "validation")[0]) < 64


@pytest.mark.parametrize("onnx", [False, True])
def test_the_file_of_an_earlier_export_does_not_outlive_one_without_or_one_that_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, onnx: bool
) -> None:
    own = Run(shutil.copytree(run.folder, tmp_path / "run"))
    assert own.onnx.is_file()
    # The graphs are there already; to make them takes longer than the rest.
    monkeypatch.setattr(stage, "export_variant", lambda run, variant, _: load_graph_card(run, variant))
    monkeypatch.setattr(variants_table, "SECONDS_PER_BATCH_SIZE", 0.0)
    monkeypatch.setattr(onnx_file, "TOLERANCE", -1.0)
    if onnx:
        with pytest.raises(ParityError, match="ONNX Runtime deviates"):
            stage.export(own, ExportConfig(onnx=True))
    else:
        stage.export(own, ExportConfig())
    assert not own.onnx.exists()
    assert not own.onnx_card.exists()


class Bessel(nn.Module):
    """torch.export holds it, ONNX has no such operator."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.special.bessel_j0(images.float())  # type: ignore[no-any-return]


def test_what_onnx_cannot_hold_is_said_in_one_line(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    images, _ = load_split(run, "validation")
    with pytest.raises(CompileError, match=r"^ONNX cannot hold this model: No ONNX function found for .*bessel_j0.*$"):
        export_onnx(run, Bessel(), images)
    assert capfd.readouterr() == ("", "")


class Flat(nn.Module):
    """Both hold it."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float().flatten(1)


def test_what_the_runtime_refuses_is_said_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_nothing(path: str, **options: Any) -> onnxruntime.InferenceSession:
        return session_of_bytes(b"no graph", **options)

    session_of_bytes = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", of_nothing)
    images, _ = load_split(run, "validation")
    with pytest.raises(CompileError, match=r"^ONNX cannot hold this model: \[ONNXRuntimeError\].*$"):
        export_onnx(run, Flat(), images)


def test_it_takes_pixels_and_any_number_of_them(run: Run) -> None:
    (taken,) = session(run.onnx).get_inputs()
    assert (taken.name, taken.type, taken.shape[1:]) == ("images", "tensor(uint8)", [1, 12, 12])
    assert isinstance(taken.shape[0], str)
    assert [path.name for path in sorted(run.onnx.parent.iterdir())] == ["model.json", "model.onnx"]


def test_another_model_s_answers_are_no_parity(run: Run) -> None:
    images, _ = load_split(run, "validation")
    other = load_variant(run, "fp32")
    with torch.no_grad():
        next(iter(other.parameters())).add_(0.1)
    with pytest.raises(ParityError, match="ONNX Runtime deviates"):
        max_difference(session(run.onnx), other, images)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "NEEDED", ("onnx", "no_such_package"))
    with pytest.raises(SettingError, match=r"--onnx needs no_such_package: pip install .*\[onnx\]"):
        check_packages()
