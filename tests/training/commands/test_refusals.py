"""What is refused has changed nothing: neither a run's config nor its checkpoints, and no data were prepared."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.runs import NewRun, another_process_at
from training.artifacts import Run, read_json
from training.commands.cli import dispatch
from training.data.prepare import prepare
from training.data.shards.pack import pack
from training.engine.train import train
from training.errors import SettingError, StorageError, TrainingError
from training.options.config import ArchiveConfig, Config, LoaderConfig


def files(run: Run) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed") / "shards"
    pack("synthetic", folder, images_per_shard=100, broken="fail")
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pin-memory", "--workers", "1"], "--pin-memory speeds up copies to a GPU"),
        (["--precision", "fp16"], "--precision is fp16, which needs a GPU"),
        (["--shuffle-buffer", "9"], "--shuffle-buffer goes with tar shards"),
    ],
)
def test_a_refused_training_leaves_the_run_as_it_was(
    new_run: NewRun, config: Config, options: list[str], message: str
) -> None:
    run = new_run()
    train(run, replace(config.train, epochs=1))
    before = files(run)
    with pytest.raises(SettingError, match=message):
        dispatch(["train", "--run", str(run.folder), *options], {})
    assert files(run) == before


def test_what_only_the_built_training_can_refuse_leaves_everything(new_run: NewRun) -> None:
    run = new_run()
    command = ["train", "--run", str(run.folder)]
    dispatch([*command, "--epochs", "1"], {})
    run.mlflow.write_text("{}")  # where MLflow has it, as if it had been followed there
    before = files(run)
    with pytest.raises(SettingError, match="--profile-steps is 99999"):
        dispatch([*command, "--profile-steps", "99999"], {})
    with pytest.raises(SettingError, match="--resume goes on as its checkpoint began"):
        dispatch([*command, "--resume", "--epochs", "9"], {})
    with another_process_at(run.folder), pytest.raises(SettingError, match="another process is at work in"):
        dispatch(command, {})
    assert files(run) == before


def test_a_file_in_the_way_is_named_and_nothing_is_lost(new_run: NewRun, config: Config) -> None:
    run = new_run()
    run.checkpoints.write_text("mine")
    before = files(run)
    with pytest.raises(StorageError, match=r"checkpoints/step-.*\.pt cannot be written: File exists"):
        train(run, replace(config.train, epochs=1))
    assert run.checkpoints.read_text() == "mine"
    assert before.keys() <= files(run).keys()


@pytest.mark.parametrize("option", ["learning-rate", "weight-decay", "clip-norm", "translation", "rotation-degrees"])
def test_an_infinite_number_is_refused(prepared: Run, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        dispatch(["train", "--run", str(prepared.folder), f"--{option}", "inf"], {})
    assert refused.value.code == 2
    printed = capsys.readouterr()
    assert f"{option} is inf; allowed is" in printed.out + printed.err


@pytest.mark.parametrize(
    ("options", "streamed"),
    [
        (["--precision", "fp16"], False),
        (["--pin-memory", "--workers", "1"], False),
        (["--shuffle-buffer", "9"], False),
        (["--sampler", "balanced"], True),
    ],
)
def test_pipeline_and_sweep_are_refused_before_they_prepare(
    tmp_path: Path, archives: ArchiveConfig, shards: Path, options: list[str], streamed: bool
) -> None:
    data = str(shards) if streamed else "synthetic"
    arguments = ["--preset", "synthetic", "--data", data, *options]
    for verb in (
        ["pipeline", "--runs", str(tmp_path / "runs"), "--handler", str(archives.handler)],
        ["sweep", "--sweep", str(tmp_path / "sweep"), "--space", "learning-rate=0.1,0.2"],
    ):
        with pytest.raises(SettingError, match=options[0]):
            dispatch([*verb, *arguments], {})
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "sweep").exists()


def test_a_balanced_sampler_is_refused_of_a_run_that_streams(tmp_path: Path, config: Config, shards: Path) -> None:
    run = Run(tmp_path)
    prepare(run, replace(config.data, data=str(shards)))
    with pytest.raises(SettingError, match="--sampler balanced draws images in any order"):
        train(run, replace(config.train, loader=LoaderConfig(sampler="balanced")))


def test_resuming_without_a_checkpoint_writes_down_what_it_begins_with(new_run: NewRun) -> None:
    run = new_run()
    command = ["train", "--run", str(run.folder), "--tracking", "--resume"]
    dispatch([*command, "--epochs", "1", "--learning-rate", "0.03"], {})
    assert read_json(run.config, "prepare")["train"]["learning_rate"] == 0.03
    # The recorded options are those of the checkpoint: none needs to be given again.
    dispatch(command, {})


@pytest.mark.parametrize("options", [["--micro-batches", "2"], ["--cpu-offload"]])
def test_options_of_another_strategy_are_refused(
    new_run: NewRun, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run()
    with pytest.raises(SystemExit) as stopped:
        dispatch(["train", "--run", str(run.folder), "--strategy", "ddp", *options], {})
    assert stopped.value.code == 2
    assert f"{options[0]} goes with --strategy" in " ".join(capsys.readouterr().err.split())


def test_an_archive_that_is_none_is_not_profiled(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"nothing\.mar"):
        dispatch(["profile", "--archive", str(tmp_path / "nothing.mar"), "--runs", str(tmp_path / "runs")], {})
    assert not any((tmp_path / "runs").iterdir())
