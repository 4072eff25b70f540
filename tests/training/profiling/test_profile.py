"""A run and its archive are profiled as they are served, by the handler that goes with them."""

import gzip
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.handlers.archives import HANDLER
from training.__main__ import main
from training.archive.archive import archive
from training.artifacts import Run
from training.errors import ProfileError, RunError, SettingError
from training.options.config import ArchiveConfig, ProfileConfig
from training.profiling.profile import figures, profile
from training.profiling.served import served_archive, served_run

CONFIG = ProfileConfig(batch_sizes=(1, 4), num_batches=3)


def read(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "profile.json").read_text())
    return document


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph in the form that shows each of its operators."""
    monkeypatch.setenv("TORCHGATE_GRAPH_FORM", "portable")


@pytest.mark.usefixtures("portable")
def test_a_run_leaves_tables_traces_and_a_picture(
    exported: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(sys.modules), list(sys.path)
    profile(tmp_path, replace(CONFIG, run=exported.folder), HANDLER)
    found = read(tmp_path)
    assert (found["model"], found["version"], found["precision"]) == ("synthetic", "0.0", "fp32")
    assert (found["device"], found["num_threads"]) == ("cpu", 1)
    assert found["forms"] == [{"form": "portable", "max_batch_size": None}]
    assert [size["batch_size"] for size in found["sizes"]] == [1, 4]
    for size in found["sizes"]:
        operators = {each["operator"]: each for each in size["operators"]}
        assert sum(each["share"] for each in size["operators"]) == pytest.approx(1)
        assert operators["aten::softmax"]["num_calls"] == 1
        assert operators["aten::_convolution"]["num_calls"] == int(operators["aten::_convolution"]["num_calls"]) > 1
        # Whatever the operators take is part of what the profiled graph takes.
        assert sum(each["self_cpu_ms"] for each in size["operators"]) <= size["profiled_graph_ms"] * 1.001
        for stage in ("graph_ms", "decode_ms", "compute_ms", "serialise_ms"):
            assert size[stage] > 0
        trace = json.loads(gzip.decompress((tmp_path / size["trace"]).read_bytes()))
        batches = [event for event in trace["traceEvents"] if event["name"] == "batch" and event["ph"] == "X"]
        assert len(batches) == 3
    with Image.open(tmp_path / "profile.png") as picture:
        assert picture.width > 500
    printed = capsys.readouterr().out
    assert "1/2 3 batches of 1\n2/2 3 batches of 4\n" in printed
    assert (tmp_path / "profile.md").read_text() in printed
    assert "| aten::mkldnn_convolution |" in printed or "| aten::_slow_conv2d_forward |" in printed
    assert sys.path == before[1]
    assert not {"image_classifier", "graph_forms", "batch_profile", "packed_request", "ranking"} & set(sys.modules)


def test_an_archive_is_profiled_in_the_forms_that_it_is_served_in(exported: Run, tmp_path: Path) -> None:
    store = ArchiveConfig(model_store=tmp_path / "store", handler=HANDLER)
    archive(exported, "synthetic", store)
    path = tmp_path / "store" / "synthetic-1.0-int8-static.mar"
    (tmp_path / "out").mkdir()
    profile(tmp_path / "out", replace(CONFIG, archive=path), HANDLER)
    found = read(tmp_path / "out")
    assert (found["version"], found["precision"], found["source"]) == ("1.0-int8-static", "int8-static", str(path))
    with zipfile.ZipFile(path) as packed:
        contract = json.loads(packed.read("contract.json"))
    wanted = [(each["form"], each.get("max_batch_size")) for each in contract["optimize"]["forms"]]
    assert [(each["form"], each["max_batch_size"]) for each in found["forms"]] == wanted
    assert any("quantized::" in each["operator"] for each in found["sizes"][0]["operators"])


def test_what_cannot_be_profiled_is_said(exported: Run, tmp_path: Path, handler: Path) -> None:
    for neither in (CONFIG, replace(CONFIG, run=exported.folder, archive=tmp_path / "a.mar")):
        with pytest.raises(SettingError, match="--run or --archive"):
            profile(tmp_path, neither, HANDLER)
    with pytest.raises(SettingError, match="--variant"):
        profile(tmp_path, replace(CONFIG, archive=tmp_path / "a.mar", variant="fp32"), HANDLER)
    with pytest.raises(RunError, match="is not a folder"):
        profile(tmp_path, replace(CONFIG, run=tmp_path / "none"), HANDLER)
    for sizes in ((), (0,), (1025,)):
        with pytest.raises(SettingError, match="--batch-sizes"):
            ProfileConfig(batch_sizes=sizes)
    with pytest.raises(ProfileError, match="some_handler"), served_run(exported, "fp32", "toy", handler):
        pass
    other = tmp_path / "other.py"
    other.write_text("class Handler:\n    def initialize(self, context): ...\n")
    with pytest.raises(ProfileError, match="no image classifier's"), served_run(exported, "fp32", "toy", other):
        pass
    broken = tmp_path / "broken.mar"
    broken.write_bytes(b"no zip")
    with pytest.raises(ProfileError, match=r"broken\.mar"), served_archive(broken):
        pass


def test_what_has_no_name_is_explained_where_it_matters(
    exported: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form, is_explained in (("optimized", True), ("portable", False)):
        monkeypatch.setenv("TORCHGATE_GRAPH_FORM", form)
        profile(tmp_path, replace(CONFIG, run=exported.folder), HANDLER)
        assert ("`forward` is TorchScript itself" in (tmp_path / "profile.md").read_text()) == is_explained


def test_kernels_of_a_gpu_have_shares_of_their_own() -> None:
    class Average:
        def __init__(self, key: str, own: float, kernels: float) -> None:
            self.key, self.count = key, 4
            self.self_cpu_time_total = self.cpu_time_total = own
            self.self_device_time_total = kernels

    first, second = figures([Average("aten::relu", 3000, 1000), Average("aten::conv", 1000, 9000)], num_batches=2)
    assert (first.operator, first.num_calls, first.self_cpu_ms, first.share) == ("aten::conv", 2, 0.5, 0.25)
    assert (first.self_device_ms, first.device_share) == (4.5, 0.9)
    assert (second.share, second.device_share) == (0.75, 0.1)


def test_the_command_makes_a_folder_or_leaves_none(
    exported: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    runs = tmp_path / "runs"
    arguments = ["profile", "--run", str(exported.folder), "--batch-sizes", "2", "--num-batches", "1"]
    monkeypatch.setattr("sys.argv", ["training", *arguments, "--runs", str(runs)])
    assert main() == 0
    (folder,) = runs.iterdir()
    assert capsys.readouterr().out.splitlines()[-1] == f"profile: {folder}"
    assert sorted(path.name for path in folder.iterdir()) == [
        "profile.json",
        "profile.md",
        "profile.png",
        "trace-2.json.gz",
    ]
    monkeypatch.setattr("sys.argv", ["training", "profile", "--runs", str(runs)])
    assert main() == 2
    assert "--run or --archive" in capsys.readouterr().err
    assert list(runs.iterdir()) == [folder]
