"""Shards and loaders from the command line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.training.test_main import training
from training.__main__ import main
from training.artifacts import Run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run one stage in this process: seconds less than in one of its own."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # as main would, for its own process

    def run(*args: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["training", *map(str, args)])
        try:
            code = main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def fill(root: Path) -> None:
    for number, name in enumerate(("dark", "light")):
        (root / name).mkdir(parents=True)
        for index in range(12):
            Image.new("L", (9, 9), number * 200 + index).save(root / name / f"{index}.png")
    (root / "light" / "bad.gif").write_bytes(b"GIF89a")


def test_a_folder_is_packed_streamed_and_measured(tmp_path: Path, command: Command) -> None:
    fill(tmp_path / "own")
    packing = ["pack", "--data", tmp_path / "own", "--shards", tmp_path / "shards", "--images-per-shard", "5"]
    code, _, error = command(*packing)
    assert code == 2
    assert error.startswith("error: 1 image cannot be used (--broken skip leaves them out)")
    assert "light/bad.gif" in error
    assert not (tmp_path / "shards").exists()
    code, said, error = command(*packing, "--broken", "skip")
    assert code == 0, error
    assert "left out, 1 broken:" in said
    assert "light/bad.gif" in said
    assert len(list((tmp_path / "shards").glob("train-*.tar"))) == 4

    code, said, error = command(
        "prepare", "--preset", "synthetic", "--data", tmp_path / "shards", "--runs", tmp_path / "runs",
        "--broken", "skip",
    )  # fmt: skip
    assert code == 0, error
    run = Run(Path(said.splitlines()[-1].removeprefix("run: ")))
    workers = ["--workers", "2", "--prefetch", "1", "--shuffle-buffer", "7", "--batch-size", "8"]
    trained = training("train", "--run", run.folder, "--epochs", "2", *workers)
    assert trained.returncode == 0, trained.stderr
    assert trained.stderr == ""
    assert json.loads(run.config.read_text())["train"]["loader"] == {
        "sampler": "random", "workers": 2, "prefetch": 1, "shuffle_buffer": 7, "pin_memory": False,
    }  # fmt: skip
    # Calibration takes the sample that prepare left.
    code, _, error = command("quantize", "--run", run.folder)
    assert code == 0, error

    report = tmp_path / "rates.json"
    code, said, error = command(
        "bench-loader", "--run", run.folder, "--model", "resnet32", *workers, "--seconds", "0.1", "--report", report
    )
    assert code == 0, error
    assert "| loader alone |" in said
    figures = json.loads(report.read_text())
    assert figures["conclusion"] == said.splitlines()[-1]
    assert min(figures[name] for name in ("loader", "model", "both")) > 0
    assert (figures["batch_size"], figures["workers"]) == (8, 2)


def test_arrays_by_sampler_and_what_does_not_go_together(tmp_path: Path, prepared: Run, command: Command) -> None:
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    (run.folder / "data").symlink_to(prepared.folder / "data")
    run.config.write_text(prepared.config.read_text())
    code, _, error = command("train", "--run", run.folder, "--epochs", "1", "--sampler", "balanced")
    assert code == 0, error
    for stage, options, message in (
        ("train", ["--prefetch", "3"], "--prefetch goes with --workers"),
        ("train", ["--pin-memory"], "--pin-memory goes with --workers"),
        ("bench-loader", ["--seconds", "0"], "--seconds is 0.0; allowed is more than 0 up to 600"),
        ("bench-loader", ["--batch-size", "1"], "--batch-size is 1; allowed is 2 or more"),
    ):
        code, _, error = command(stage, "--run", run.folder, *options)
        assert code == 2
        assert message in " ".join(error.split())
    for options, message in (
        (["--pin-memory", "--workers", "1"], "error: --pin-memory speeds up copies to a GPU"),
        (["--shuffle-buffer", "3"], "error: --shuffle-buffer goes with tar shards"),
    ):
        code, _, error = command("train", "--run", run.folder, *options)
        assert code == 2
        assert message in error
        assert len(error.splitlines()) == 1


def test_bench_loader_takes_the_steps_that_the_run_would(tmp_path: Path, prepared: Run, command: Command) -> None:
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    (run.folder / "data").symlink_to(prepared.folder / "data")
    document = json.loads(prepared.config.read_text())
    document["train"] |= {"precision": "fp16", "accumulation": 2, "schedule": "one-cycle"}
    run.config.write_text(json.dumps(document))
    code, _, error = command("bench-loader", "--run", run.folder)
    assert code == 2
    assert "--precision is fp16, which needs a GPU (--device cuda)" in error
    code, _, error = command("bench-loader", "--run", run.folder, "--device", "gpu")
    assert code == 2
    assert "--device is 'gpu'; allowed is cpu, cuda or cuda:N" in error
    document["train"]["precision"] = "bf16"
    run.config.write_text(json.dumps(document))
    code, said, error = command("bench-loader", "--run", run.folder, "--seconds", "0.1")
    assert code == 0, error
    assert "| both, as in training |" in said


def test_packing_takes_a_whole_number_of_images(tmp_path: Path, command: Command) -> None:
    code, _, error = command("pack", "--data", "synthetic", "--shards", tmp_path / "x", "--images-per-shard", "0")
    assert code == 2
    assert "--images-per-shard is 0; allowed is 1 or more" in " ".join(error.split())
