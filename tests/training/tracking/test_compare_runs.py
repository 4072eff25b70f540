"""Runs side by side: what differs between them, what they reached."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.training.runs import follow
from training.artifacts import Run, write_json
from training.commands.cli import dispatch
from training.engine.history import EpochRecord, Follower
from training.errors import RunError, SettingError
from training.options.config import Config
from training.options.verbs import TrackingOptions
from training.tracking.compare_runs import compare_runs
from training.tracking.record import load_record
from training.tracking.tracker import tracked


def told(folder: Path, config: Config, *accuracies: float) -> Run:
    """Return a run of which a training was told that was then interrupted."""
    run = Run(folder)
    folder.mkdir(parents=True)
    epochs = [
        EpochRecord(epoch, 0.1, 0.5, accuracy, 1 - accuracy, accuracy, seconds=1.5)
        for epoch, accuracy in enumerate(accuracies, start=1)
    ]

    def body(follower: Follower) -> None:
        follow(follower, *epochs)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), tracked(run, config, TrackingOptions(tracking=())) as follower:
        body(follower)
    return run


@pytest.fixture
def pair(tmp_path: Path, config: Config) -> tuple[Run, Run]:
    faster = replace(config, train=replace(config.train, learning_rate=0.05))
    return told(tmp_path / "slow", config, 0.25, 0.5), told(tmp_path / "fast", faster, 0.5, 0.875, 0.75)


def test_table_and_picture_show_differences_and_figures(
    pair: tuple[Run, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(pair[1].record, load_record(pair[1]) | {"figures": {"fp32": {"accuracy": 0.8125}}})
    dispatch(["compare", *(str(run.folder) for run in pair), "--runs", str(tmp_path / "out")], {})
    (folder,) = (tmp_path / "out").iterdir()
    head, _, slow, fast, *_ = (folder / "comparison.md").read_text().splitlines()
    names = [cell.strip() for cell in head.strip("|").split("|")]
    assert names[:2] == ["run", "learning_rate"]
    for line, expected in (
        (slow, {"run": "slow", "learning_rate": "0.02", "epoch kept": "2 of 2", "validation accuracy": "0.5000"}),
        (fast, {"run": "fast", "learning_rate": "0.05", "epoch kept": "2 of 3", "validation accuracy": "0.8750"}),
    ):
        cells = dict(zip(names, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
        assert cells.items() >= expected.items()
        assert cells["test accuracy"] == ("0.8125" if line is fast else "")
        assert cells["ended"] == "interrupted"
    assert "batch_size" not in head
    assert fast in capsys.readouterr().out
    with Image.open(folder / "comparison.png") as picture:
        assert picture.width > 800
    rows = json.loads((folder / "comparison.json").read_text())["runs"]
    assert [row["options"] for row in rows] == [{"train.learning_rate": 0.02}, {"train.learning_rate": 0.05}]
    assert rows[1]["seconds"] == 4.5


def test_runs_of_one_name_are_told_apart_and_equal_options_are_said(tmp_path: Path, config: Config) -> None:
    runs = [told(tmp_path / sweep / "000", config, 0.5) for sweep in ("a", "b")]
    compare_runs(tmp_path, runs)
    text = (tmp_path / "comparison.md").read_text()
    assert f"| {runs[0].folder} |" in text
    assert "Their options are the same." in text


def test_runs_without_an_epoch_have_a_table_and_no_picture(tmp_path: Path, config: Config) -> None:
    compare_runs(tmp_path, [told(tmp_path / name, config) for name in ("a", "b")])
    assert "png" not in (tmp_path / "comparison.md").read_text()
    assert not (tmp_path / "comparison.png").exists()


def test_what_cannot_be_compared_is_named(pair: tuple[Run, Run], tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"was given 1 run\(s\); allowed are 2 to 20"):
        compare_runs(tmp_path, pair[:1])
    with pytest.raises(SettingError, match="a run twice"):
        compare_runs(tmp_path, [pair[0], pair[0]])
    with pytest.raises(RunError, match="nowhere is not a folder"):
        compare_runs(tmp_path, [pair[0], Run(tmp_path / "nowhere")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"record\.json is not there; `python -m training train`"):
        compare_runs(tmp_path, [pair[0], Run(tmp_path / "empty")])
