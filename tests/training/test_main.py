"""`python -m training`, as a person runs it."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from training.__main__ import main
from training.artifacts import Run, sha256

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What main sets for its own process does not outlive the test."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.delenv("TORCHGATE_MODEL_STORE", raising=False)


def training(*args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # One thread: the work is tiny, and the machine may be busy. Warnings are errors in here too.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"} | environment
    command = [sys.executable, "-m", "training", *map(str, args)]
    return subprocess.run(command, cwd=ROOT, env=environment, timeout=200, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("trace", ["--onnx"]),
        pytest.param("script", [], marks=pytest.mark.soak),
        ("mixed", ["--model", "resnet20-early-exit", "--learning-rate", "0.1"]),
    ],
)
def test_pipeline_goes_the_whole_way(tmp_path: Path, handler: Path, method: str, options: list[str]) -> None:
    store = tmp_path / "store"
    qat = ["--qat", "--qat-epochs", "2", "--qat-learning-rate", "0.01"] if method != "trace" else []
    done = training(
        "pipeline", "--preset", "synthetic", "--compile", method, *options, *qat, "--runs", tmp_path / "runs",
        "--handler", handler, "--keep-checkpoints", "1", TORCHGATE_MODEL_STORE=str(store),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert sorted(path.name for path in store.glob("*.mar")) == [
        "synthetic-1.0-int8-dynamic.mar",
        *(["synthetic-1.0-int8-qat.mar"] if qat else []),
        "synthetic-1.0-int8-static.mar",
        "synthetic-1.0.mar",
    ]
    (folder,) = (tmp_path / "runs").iterdir()
    run = Run(folder)
    for stage in ("1/6 prepare", "2/6 train", "3/6 evaluate", "4/6 quantize", "5/6 export", "6/6 archive"):
        assert stage in done.stdout
    accuracy = json.loads(run.evaluation("fp32").read_text())["report"]["accuracy"]
    last = done.stdout.splitlines()[-1]
    assert f"accuracy {accuracy:.2%}" in last
    assert str(store) in last
    assert str(folder) in last
    assert accuracy >= 0.9
    assert len(list(run.checkpoints.iterdir())) == 1
    assert json.loads(run.graph_card("fp32").read_text())["compile"] == method
    assert run.onnx.is_file() == ("--onnx" in options)
    assert ("| int8-qat |" in run.comparison_table.read_text()) == bool(qat)
    record = json.loads(run.record.read_text())
    assert ("int8-qat" in record["figures"]) == bool(qat)
    assert "archives.json" in record["artifacts"]


def test_own_images_go_the_whole_way_stage_by_stage(tmp_path: Path, handler: Path) -> None:
    for label, colour in (("dark", (40, 0, 0)), ("light", (200, 220, 210))):
        (tmp_path / "shades" / label).mkdir(parents=True)
        for index in range(10):
            pixels = tuple(value + index for value in colour)
            Image.new("RGB", (9 + index, 14), pixels).save(tmp_path / "shades" / label / f"{index}.png")
    form = ["--channels", "3", "--height", "16", "--width", "12"]
    done = training("prepare", "--data", tmp_path / "shades", "--runs", tmp_path / "runs", *form)
    assert done.returncode == 0, done.stderr
    run = Run(Path(done.stdout.splitlines()[-1].removeprefix("run: ")))
    for stage in (
        ["train", "--model", "resnet20", "--epochs", "2", "--no-flip"],
        ["evaluate"],
        ["quantize"],
        ["export", "--compile", "script"],
        [
            *("archive", "--model-store", tmp_path / "store", "--handler", handler, "--version", "4.2"),
            *("--max-image-pixels", "1000000", "--image-formats", "PNG", "JPEG"),
        ],
    ):
        done = training(*stage, "--run", run.folder)
        assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "store" / "shades-4.2.mar") as archive:
        limits = json.loads(archive.read("contract.json"))["images"]
    assert limits == {"max_pixels": 1_000_000, "formats": ["PNG", "JPEG"]}
    config = json.loads(run.config.read_text())
    assert (config["preset"], config["name"]) == ("images", "shades")
    assert (config["train"]["architecture"], config["train"]["augment"]["flip"]) == ("resnet20", False)
    again = training("archive", "--run", run.folder, "--model-store", tmp_path / "store", "--handler", handler)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "store" / "shades-4.3.mar").is_file()
    assert json.loads(run.record.read_text())["artifacts"]["archives.json"]["sha256"] == sha256(run.archives)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fly"], "no stage 'fly'; allowed is one of prepare"),
        (["pipeline", "--preset", "nonsense"], "--preset is 'nonsense'; allowed is one of digits"),
        (["pipeline", "--preset", "images"], "give their folder with --data"),
        (["pipeline", "--data", "/nowhere"], "--data: /nowhere is not a folder"),
        (["pipeline", "--name", "My Digits"], "the model's name is 'My Digits'"),
        (["train", "--run", "/nowhere"], "--run: /nowhere is not a folder"),
        (["pipeline", "--model", "resnet20-early-exit"], "--compile is trace, and how far resnet20-early-exit goes"),
        (["pipeline", "--model", "resnet20-early-exit", "--compile", "script", "--onnx"], "--aoti and --onnx hold one"),
    ],
)
def test_mistakes_are_one_clear_line(
    tmp_path: Path,
    args: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    handler: Path,
) -> None:
    if args[0] == "pipeline":
        args = [*args, "--runs", str(tmp_path / "runs"), "--handler", str(handler)]
    monkeypatch.setattr(sys, "argv", ["training", *args])
    assert main() == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pipeline", "--epochs", "0"], "--epochs is 0; allowed is 1 or more"),
        (["pipeline", "--model", "resnet19"], "resnet20"),
        (["pipeline", "--speed", "9"], "--speed"),
        (["train"], "--run"),
    ],
)
def test_wrong_options_are_named(
    args: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["training", *args])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_existing_version_stops_before_training(tmp_path: Path, handler: Path) -> None:
    (tmp_path / "synthetic-1.0.mar").touch()
    done = training(
        "pipeline", "--preset", "synthetic", "--version", "1.0", "--runs", tmp_path / "runs",
        "--model-store", tmp_path, "--handler", handler,
    )  # fmt: skip
    assert done.returncode == 2
    assert "synthetic 1.0 is in" in done.stderr
    assert "train" not in done.stdout
    assert not (tmp_path / "runs").exists()


def test_divergence_is_one_clear_line(tmp_path: Path, handler: Path) -> None:
    done = training(
        "pipeline", "--preset", "synthetic", "--learning-rate", "1e20", "--runs", tmp_path / "runs",
        "--model-store", tmp_path / "store", "--handler", handler,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: the loss became nan in epoch 1/4, step ")
    assert len(done.stderr.splitlines()) == 1
