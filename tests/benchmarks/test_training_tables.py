"""The training side's tables: what is compared gives equal answers, figures survive their file, failures say why."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from benchmarks.environment.folders import ROOT
from benchmarks.training import forms, operators, peak, strategies
from benchmarks.training.forms import network_forms
from benchmarks.training.operators import gelu_chain, pairwise_by_broadcasting, pairwise_by_loops, square_chain
from benchmarks.training.report import run_training
from benchmarks.training.strategies import last_words
from benchmarks.training.table import Figure, Table, read_table, write_table
from benchmarks.training.timing import in_turns
from training.export import onnx_file
from training.models.resnet import build_model
from training.models.serving_graph import Normalize, ServingGraph, as_convolutions


def test_every_way_to_the_distances_gives_the_same() -> None:
    first, second = torch.rand(7, 3), torch.rand(5, 3)
    expected = torch.cdist(first, second)
    torch.testing.assert_close(pairwise_by_loops(first, second), expected)
    torch.testing.assert_close(pairwise_by_broadcasting(first, second), expected)


def test_the_chain_is_gelu_in_every_form() -> None:
    x = torch.randn(1000)
    expected = F.gelu(x, approximate="tanh")
    torch.testing.assert_close(gelu_chain(x), expected)
    torch.testing.assert_close(torch.jit.script(gelu_chain)(x), expected)


def test_the_published_chain_is_measured_as_it_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(5)
    torch.testing.assert_close(square_chain(x), x**1024)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(operators, "CHAIN_SIZES", (10,))
    table = operators.chain(0.001)
    assert "x * x ten times on rand(5)" in table.note
    assert table.median("eager", operators.PUBLISHED_CHAIN)
    assert table.median("scripted", operators.PUBLISHED_CHAIN)


TABLE = Table(
    name="toy",
    title="Toy",
    note="Nothing.",
    unit="ms",
    columns=("small", "large"),
    rows={"fast": {"small": Figure(1.5, 1, 2), "large": Figure(3e4, 3e4, 3e4)}, "absent": "no such device"},
    findings=["It is fast."],
)


def test_a_table_survives_its_file_and_says_what_is_missing(tmp_path: Path) -> None:
    write_table(tmp_path, TABLE)
    assert read_table((tmp_path / "toy.json").read_text()) == TABLE
    text = TABLE.markdown()
    assert "| | small, ms | large, ms |" in text
    assert "| fast | 1.5 (1-2) | 30,000 |" in text
    assert "| absent | not measured: no such device |  |" in text
    assert text.endswith("\n\nIt is fast.")
    assert TABLE.median("fast", "small") == 1.5
    assert TABLE.median("absent", "small") is None


def test_one_table_is_measured_again_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operators, "PAIRWISE", (6, 5, 2))
    published = tmp_path / "published"
    monkeypatch.setattr("benchmarks.training.report.PUBLISHED", published)
    folder = tmp_path / "out"
    run_training("quick", "pairwise", publish=False, folder=folder)
    run_training("quick", "copies", publish=True, folder=folder)
    text = (published / "training.md").read_text()
    assert text in capsys.readouterr().out
    assert "### Pairwise distance" in text
    assert "| loops | " in text
    assert "times as fast as loops (published: 1,360 times)" in text
    assert "### Copies to the GPU" in text
    tables = json.loads((published / "training.json").read_text())["tables"]
    assert [each["name"] for each in tables] == ["pairwise", "copies"]
    assert tables[0]["rows"]["broadcasting"]["published"]["median"] == 0.322
    # Published from another clone, where nothing else was measured: the others stay, if they are of such a machine.
    run_training("quick", "convolution", publish=True, folder=tmp_path / "another")
    document = json.loads((published / "training.json").read_text())
    assert [each["name"] for each in document["tables"]] == ["pairwise", "convolution", "copies"]
    (published / "training.json").write_text(json.dumps(document | {"machine": "another"}))
    run_training("quick", "copies", publish=True, folder=tmp_path / "third")
    tables = json.loads((published / "training.json").read_text())["tables"]
    assert [each["name"] for each in tables] == ["copies"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")
def test_what_needs_a_gpu_says_so() -> None:
    for table in (operators.convolution(0.01), operators.copies(0.01)):
        assert set(table.rows.values()) == {operators.NO_GPU}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a build of torch for it")
def test_the_gpu_is_measured() -> None:
    for table in (operators.convolution(0.01), operators.copies(0.01)):
        for row in table.rows.values():
            assert isinstance(row, dict)
            assert set(row) == set(table.columns)


def test_each_call_on_a_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("wait"))
    in_turns({"call": lambda: order.append("call")}, 0.001, 1e3, on_gpu=True)
    measured = order[order.index("wait") - 1 :]  # without the calls to warm up
    assert len(measured) > 4
    assert measured == ["call", "wait"] * (len(measured) // 2)


def test_each_table_says_how_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "PAIRWISE", (6, 5, 2))
    assert "quartiles; time of the thread itself" in operators.pairwise(0.001).note
    assert "quartiles; time until the GPU has done it" in operators.copies(0.001).note


def test_without_a_compiler_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(operators, "CHAIN_SIZES", (10, 20))
    table = operators.chain(0.01)
    assert table.rows["torch.compile"] == "no C++ compiler (no-such-compiler) here"
    for name in ("eager", "scripted"):
        assert table.median(name, "10") and table.median(name, "20")  # noqa: PT018


def test_every_form_of_the_network_is_measured_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(onnx_file, "NEEDED", ("no_such_package",))
    table = network_forms(0.001, (1, 2))
    assert table.rows["torch.compile"] == "no C++ compiler (no-such-compiler) here"
    assert table.rows["ONNX Runtime"] == "not installed: no_such_package"
    for name in (
        "eager", "traced", "scripted", "frozen", "optimized for inference", "optimized, channels last", "int8-dynamic",
        "int8-static",
    ):  # fmt: skip
        assert table.median(name, "batch of 1"), name
        assert table.median(name, "batch of 2"), name


def test_time_status_and_memory_of_a_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    allocates = "x = bytearray(200 << 20); print('said'); raise SystemExit(3)"
    # As a program: forked from this process, the command would begin with what torch takes here.
    program = [sys.executable, "-m", "benchmarks.training.peak", "60", str(log), sys.executable, "-c", allocates]
    done = subprocess.run(program, cwd=ROOT, check=True, capture_output=True, text=True, timeout=100)
    found = json.loads(done.stdout)
    assert found["status"] == 3
    assert 200e6 < found["peak_bytes"] < 300e6
    assert found["seconds"] > 0
    assert log.read_text() == "said\n"


def test_a_command_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    forever = "import signal; signal.pause()"
    assert peak.run(0.2, tmp_path / "log", [sys.executable, "-c", forever])["status"] == -9


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("epoch 1\nerror: no such thing | at all\n", "no such thing / at all"),
        ("Traceback\n  File\nRuntimeError: gloo\nlater\n", "RuntimeError: gloo"),
        ("╭─ Unrecognized ─╮\n│ words │\n╰────╯\n", "words"),
        ("", ""),
    ],
)
def test_a_failed_training_has_last_words(log: str, words: str) -> None:
    assert last_words(log) == words


def test_a_training_is_measured_and_one_that_cannot_run_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategies, "STRATEGIES", (("single", 1), ("nonsense", 2)))
    table = strategies.strategies(tmp_path / "runs", "synthetic", 2)
    row = table.rows["single, 1 process"]
    assert isinstance(row, dict), row
    assert row[strategies.SPEED].median > 0
    assert 100 < row[strategies.PEAK].median < 4000
    assert isinstance(table.rows["nonsense, 2 processes"], str)
    assert "the least and the largest" in table.note


def test_onnx_runtime_answers_like_the_eager_network() -> None:
    for name in onnx_file.NEEDED:
        pytest.importorskip(name)
    torch.manual_seed(0)
    network = as_convolutions(build_model("resnet20", num_classes=3, channels=1))
    graph = ServingGraph(Normalize([0.1], [0.3]), network).eval()
    images = torch.randint(0, 256, (5, 1, 12, 12), dtype=torch.uint8)
    with torch.inference_mode():
        answers = forms.onnx_form(graph, images[:2])(images)
        torch.testing.assert_close(torch.as_tensor(answers), graph(images), rtol=0, atol=1e-5)
