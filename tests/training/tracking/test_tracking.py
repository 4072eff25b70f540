"""A run writes down how it came about; that can be read back, and changes nothing of what is learnt."""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import IMAGES, SCALARS, EventAccumulator

from tests.training.runs import NewRun, follow
from training.artifacts import Run, read_json, sha256
from training.commands.cli import dispatch
from training.engine.history import EpochRecord, Follower
from training.engine.train import train
from training.errors import NonFiniteLossError, SettingError, TrialPruned
from training.options.config import Config
from training.options.verbs import TrackingOptions
from training.tracking.environment import find_code, find_environment
from training.tracking.record import load_record, refresh
from training.tracking.tracker import tracked

RECORD_ALONE = TrackingOptions(tracking=())


def events(run: Run) -> EventAccumulator:
    found = EventAccumulator(str(run.tensorboard), size_guidance={SCALARS: 0, IMAGES: 0})
    found.Reload()
    return found


def of_epoch(number: int, accuracy: float = 0.5) -> EpochRecord:
    return EpochRecord(number, 0.1, 0.7, 0.5, validation_loss=0.6, validation_accuracy=accuracy, seconds=0.1)


def without_seconds(epochs: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in each.items() if name != "seconds"} for each in epochs]


def test_train_leaves_a_record_and_tensorboards_files(new_run: NewRun, config: Config) -> None:
    run = new_run()
    dispatch(["train", "--run", str(run.folder), "--epochs", "2", "--seed", "3"], {})
    record, history = load_record(run), read_json(run.history, "train")
    assert (record["status"], record["seed"], record["run"]) == ("finished", 3, run.id)
    assert record["config"] == read_json(run.config, "prepare")
    assert record["config"]["train"]["epochs"] == 2
    assert (record["epochs"], record["kept_epoch"]) == (history["epochs"], history["kept_epoch"])
    assert record["artifacts"]["weights.pt"] == {
        "size_bytes": run.weights.stat().st_size,
        "sha256": sha256(run.weights),
    }
    assert not any(name.startswith(("data/", "tensorboard/")) for name in record["artifacts"])
    assert record["started"] <= record["ended"]
    assert record["environment"]["torch"] == torch.__version__
    assert record["environment"]["num_threads"] == torch.get_num_threads()
    assert record["environment"]["packages"]["torch"] == torch.__version__
    found = events(run)
    for name in ("loss", "accuracy"):
        for split in ("train", "validation"):
            written = [(each.step, each.value) for each in found.Scalars(f"{name}/{split}")]
            expected = [(each["epoch"], pytest.approx(each[f"{split}_{name}"])) for each in history["epochs"]]
            assert written == expected
    rates = [each.value for each in found.Scalars("learning rate")]
    assert rates == pytest.approx([each["learning_rate"] for each in history["epochs"]])
    (picture,) = found.Images("confusion matrix/validation")
    assert picture.step == history["kept_epoch"]
    assert picture.width > 400
    assert picture.encoded_image_string.startswith(b"\x89PNG")


def test_a_followed_run_learns_bit_for_bit_what_another_does(new_run: NewRun, config: Config) -> None:
    brief = replace(config, train=replace(config.train, epochs=2))
    followed, again, alone = new_run(), new_run(), new_run()
    for run in (followed, again):
        with tracked(run, brief, TrackingOptions()) as follower:
            train(run, brief.train, follower=follower)
    train(alone, brief.train)
    first, second = load_record(followed), load_record(again)
    assert without_seconds(first["epochs"]) == without_seconds(second["epochs"])
    assert first["artifacts"]["weights.pt"] == second["artifacts"]["weights.pt"]
    assert followed.weights.read_bytes() == alone.weights.read_bytes()
    assert events(followed).Scalars("loss/train")[1].value == events(again).Scalars("loss/train")[1].value


def test_a_run_that_was_stopped_and_resumed_has_the_record_of_one_that_was_not(new_run: NewRun, config: Config) -> None:
    whole, stopped = new_run(), new_run()
    train_command = ["train", "--epochs", "2", "--run"]
    dispatch([*train_command, str(whole.folder)], {})

    def stop(record: EpochRecord) -> None:
        if record.epoch == 2:
            raise KeyboardInterrupt  # after it was told, before its checkpoint

    brief = replace(config, train=replace(config.train, epochs=2))
    with pytest.raises(KeyboardInterrupt), tracked(stopped, brief, TrackingOptions(), stop) as follower:
        train(stopped, brief.train, follower=follower)
    assert load_record(stopped)["status"] == "interrupted"
    dispatch([*train_command, str(stopped.folder), "--resume"], {})
    first, second = load_record(whole), load_record(stopped)
    assert without_seconds(first["epochs"]) == without_seconds(second["epochs"])
    assert (first["status"], first["kept_epoch"]) == (second["status"], second["kept_epoch"])
    assert first["artifacts"]["weights.pt"] == second["artifacts"]["weights.pt"]
    assert [each.step for each in events(stopped).Scalars("loss/train")] == [1, 2]
    # It has no epoch left, and so none is told.
    dispatch([*train_command, str(stopped.folder), "--resume"], {})
    again = load_record(stopped)
    assert (again["status"], again["epochs"], again["kept_epoch"]) == ("finished", second["epochs"], 2)


def test_evaluation_adds_its_figures(new_run: NewRun, config: Config) -> None:
    run = new_run()
    refresh(run)
    assert not run.record.exists()
    brief = replace(config, train=replace(config.train, epochs=1))
    with tracked(run, brief, RECORD_ALONE) as follower:
        train(run, brief.train, follower=follower)
    assert not run.tensorboard.exists()
    assert load_record(run)["figures"] == {}
    dispatch(["evaluate", "--run", str(run.folder)], {})
    report = read_json(run.evaluation("fp32"), "evaluate")["report"]
    record = load_record(run)
    assert record["figures"]["fp32"]["accuracy"] == report["accuracy"]
    assert record["artifacts"]["fp32/evaluation.json"]["sha256"] == sha256(run.evaluation("fp32"))
    dispatch(["train", "--run", str(run.folder), "--epochs", "1", "--seed", "7", "--tracking"], {})
    assert load_record(run)["figures"] == {}, "they are of other weights"


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (NonFiniteLossError("the loss became nan"), "failed", "the loss became nan"),
        (OSError("disk"), "failed", "OSError('disk')"),
        (TrialPruned("below the median"), "pruned", "below the median"),
        (KeyboardInterrupt(), "interrupted", "interrupted"),
    ],
)
def test_how_a_training_ended_is_written_whatever_ended_it(
    new_run: NewRun, config: Config, error: BaseException, status: str, reason: str
) -> None:
    run = new_run()

    def fail(record: EpochRecord) -> None:
        raise error

    with pytest.raises(type(error)), tracked(run, config, TrackingOptions(), fail) as follower:
        follow(follower, of_epoch(1))
    record = load_record(run)
    assert (record["status"], record["reason"]) == (status, reason)
    assert [each["epoch"] for each in record["epochs"]] == [1]
    assert [each.step for each in events(run).Scalars("loss/train")] == [1]


def tell(run: Run, config: Config, *epochs: EpochRecord, resumed: bool = False) -> None:
    """Take the epochs, then be interrupted."""

    def body(follower: Follower) -> None:
        follow(follower, *epochs)
        raise KeyboardInterrupt

    following = tracked(run, config, TrackingOptions(), resumed=resumed)
    with pytest.raises(KeyboardInterrupt), following as follower:
        body(follower)


def test_a_resumed_training_goes_on_with_its_epochs_and_a_new_one_begins_anew(new_run: NewRun, config: Config) -> None:
    run = new_run()
    tell(run, config, of_epoch(1, 0.1), of_epoch(2, 0.2), of_epoch(3, 0.3))
    tell(run, config, resumed=True)
    assert [each["epoch"] for each in load_record(run)["epochs"]] == [1, 2, 3]
    tell(run, config, of_epoch(3, 0.9), of_epoch(4, 0.4), resumed=True)
    accuracies = [each["validation_accuracy"] for each in load_record(run)["epochs"]]
    assert accuracies == [0.1, 0.2, 0.9, 0.4]
    written = [(each.step, each.value) for each in events(run).Scalars("accuracy/validation")]
    assert written == [
        (1, pytest.approx(0.1)),
        (2, pytest.approx(0.2)),
        (3, pytest.approx(0.9)),
        (4, pytest.approx(0.4)),
    ]
    tell(run, config, of_epoch(1, 0.6))
    assert len(list(run.tensorboard.iterdir())) == 1
    tell(run, config, of_epoch(1, 0.7), resumed=True)  # it was killed before its first checkpoint
    assert [each["validation_accuracy"] for each in load_record(run)["epochs"]] == [0.7]
    assert [each.step for each in events(run).Scalars("accuracy/validation")] == [1]


def test_a_store_without_its_tool_is_refused(prepared: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        dispatch(["train", "--run", str(prepared.folder), "--mlflow", "elsewhere"], {})
    assert "--tracking mlflow" in capsys.readouterr().err


def test_mlflow_that_is_not_installed_is_said_before_training(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run()
    monkeypatch.setitem(sys.modules, "alembic", None)
    with pytest.raises(SettingError, match=r"pip install 'torchgate\[tracking\]'"):
        dispatch(["train", "--run", str(run.folder), "--tracking", "mlflow"], {})
    assert not run.record.exists()


def git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *identity, *args], check=True, capture_output=True, timeout=60)


def test_the_commit_is_that_of_the_code_and_changes_are_seen(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    assert find_code(package) is None
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("installed/\n")
    assert find_code(package) is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "all")
    clean = find_code(package)
    assert clean is not None
    assert len(clean.commit) == 40
    assert not clean.dirty
    (package / "new.py").touch()
    assert find_code(package) == replace(clean, dirty=True)
    # An installed copy inside a checkout is none of that project's code.
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "__init__.py").touch()
    assert find_code(installed) is None


def test_the_environment_names_what_figures_depend_on() -> None:
    found = asdict(find_environment())
    assert found["cpu"]
    assert found["python"].startswith("3.")
    assert found["num_cpus"] >= 1
    assert {"numpy", "torch", "tensorboard"} <= set(found["packages"])
