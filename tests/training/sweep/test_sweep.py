"""A sweep finds the best of its trials, gives bad ones up, and goes on after it was killed as if it had not been."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.runs import another_process_at
from tests.training.test_main import ROOT, training
from training.artifacts import Run, Sweep, write_json
from training.commands.cli import dispatch
from training.errors import RunError, SettingError
from training.evaluation.evaluate import load_evaluation
from training.models.weights import load_card, load_qat_card
from training.options.config import Config
from training.sweep.study import best_run
from training.tracking.record import load_record

OPTIONS = [
    "--preset", "synthetic", "--height", "8", "--width", "8", "--epochs", "2", "--batch-size", "64",
    "--space", "learning_rate=log:0.00001:0.3", "--space", "batch-size=32,64",
    "--num-trials", "6", "--num-startup-trials", "2", "--tracking", "--qat", "--qat-epochs", "1",
]  # fmt: skip

BRIEF = [
    "--preset", "synthetic", "--height", "8", "--width", "8", "--epochs", "1", "--batch-size", "64",
    "--num-trials", "4", "--tracking",
]  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    sweep = Sweep(tmp_path_factory.mktemp("sweeps") / "undisturbed")
    dispatch(["sweep", "--sweep", str(sweep.folder), *OPTIONS, "--num-startup-epochs", "1"], {})
    return sweep


def trials(sweep: Sweep) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(sweep.summary.read_text())["trials"]
    return found


def test_trials_are_runs_and_bad_ones_are_pruned(undisturbed: Sweep) -> None:
    rows = {row["run"]: row for row in trials(undisturbed)}
    assert sorted(rows) == ["000", "001", "002", "003", "004", "005"]
    assert len({row["values"]["learning_rate"] for row in rows.values()}) == 6
    for name, row in rows.items():
        run = Run(undisturbed.trials / name)
        record = load_record(run)
        train = record["config"]["train"]
        assert {"learning_rate": train["learning_rate"], "batch_size": train["batch_size"]} == row["values"]
        assert 0.00001 <= train["learning_rate"] <= 0.3
        assert row["values"]["batch_size"] in (32, 64)
        assert not list(run.checkpoints.glob("*"))
        assert (record["status"], len(record["epochs"])) == (row["status"], row["num_epochs"])
        if row["status"] == "finished":
            assert load_card(run).validation_accuracy == row["validation_accuracy"]
        else:
            # Less than the median of the finished ones had after its last epoch.
            assert row["num_epochs"] <= 2
            assert "is below the median after epoch" in record["reason"]
    assert [rows[name]["status"] for name in ("000", "001")] == ["finished", "finished"]
    assert "pruned" in {row["status"] for row in rows.values()}
    best = max(
        (row for row in rows.values() if row["status"] == "finished"),
        key=lambda row: (row["validation_accuracy"], -load_card(Run(undisturbed.trials / row["run"])).validation_loss),
    )
    assert best_run(undisturbed).id == best["run"] == trials(undisturbed)[0]["run"]
    assert undisturbed.table.read_text().splitlines()[2].startswith(f"| {best['run']} |")


def kill_in(number: int, sweep: Sweep) -> None:
    """Run the sweep as a person does and kill it after the first epoch of that trial, with a signal that none sees."""
    command = [sys.executable, "-u", "-m", "training", "sweep", "--sweep", str(sweep.folder), *OPTIONS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = iter(process.stdout)
            assert any(line.startswith(f"trial {number}/") for line in lines)
            assert next(lines).startswith("epoch 1/2")
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A sweep that was killed in its first and in its third trial, and then left in peace."""
    sweep = Sweep(tmp_path_factory.mktemp("sweeps") / "killed")
    kill_in(1, sweep)
    with pytest.raises(RunError, match="no finished trial yet"):
        best_run(sweep)
    kill_in(3, sweep)
    assert {row["run"] for row in trials(sweep)} == {"000", "001"}
    assert load_record(sweep.trial(2))["status"] == "running"
    done = training("sweep", "--sweep", sweep.folder, *OPTIONS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("trial 3/6")
    return sweep


def test_a_killed_sweep_goes_on_as_if_nothing_had_happened(undisturbed: Sweep, resumed: Sweep) -> None:
    assert trials(resumed) == trials(undisturbed)


def test_the_best_run_of_a_sweep_is_exported_by_one_command(resumed: Sweep) -> None:
    done = training("export", "--sweep", resumed.folder, "--compile", "script")
    assert done.returncode == 0, done.stderr
    best = best_run(resumed)
    assert done.stdout.splitlines()[0] == f"run: {best.folder}"
    assert load_record(best)["figures"]["fp32"]["accuracy"] == load_evaluation(best, "fp32").report.accuracy
    assert json.loads(best.graph_card("fp32").read_text())["compile"] == "script"
    assert best.graph("int8-static").is_file()
    assert len(load_qat_card(best).epochs) == 1
    assert best.graph("int8-qat").is_file()


def test_the_best_run_is_measured_once_after_the_options_were_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, export = Sweep(tmp_path), ["export", "--sweep", str(tmp_path)]
    space = ["--space", "momentum=0.8,0.9", "--num-trials", "1", "--qat", "--qat-epochs", "1"]
    dispatch(["sweep", "--sweep", str(tmp_path), *BRIEF, *space], {})
    for option, status in (("--help", "0"), ("--compil", "2")):
        with pytest.raises(SystemExit, match=status):
            dispatch([*export, option], {})
    best = best_run(sweep)
    assert not best.evaluation("fp32").exists()
    monkeypatch.setattr("training.commands.pipeline.export", lambda run, config: None)
    dispatch(export, {})
    assert load_record(best)["figures"].keys() == {"fp32", "int8-dynamic", "int8-static", "int8-qat"}
    capsys.readouterr()
    dispatch(export, {})
    assert capsys.readouterr().out.splitlines() == [f"run: {best.folder}"]
    evaluation = json.loads(best.evaluation("fp32").read_text())
    write_json(best.evaluation("fp32"), evaluation | {"weights_sha256": "another"})
    dispatch(export, {})
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["run", "fp32"]
    assert json.loads(best.evaluation("fp32").read_text()) == evaluation


def test_a_finished_sweep_grows_and_refuses_other_options(
    undisturbed: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["sweep", "--sweep", str(undisturbed.folder), *OPTIONS]
    dispatch(again, {})
    assert "trial" not in capsys.readouterr().out.removeprefix(f"best: {undisturbed.folder}/trials")
    with pytest.raises(SettingError, match=r"another config\.train\.epochs, 2 and not 1"):
        dispatch([*again, "--epochs", "1"], {})
    with pytest.raises(SettingError, match="another space"):
        dispatch([*again, "--space", "momentum=0.8:0.9"], {})
    with pytest.raises(SettingError, match="another num_startup_trials, 2 and not 3"):
        dispatch([*again, "--num-startup-trials", "3"], {})
    with another_process_at(undisturbed.folder), pytest.raises(SettingError, match="another process is at work"):
        dispatch(again, {})


@pytest.mark.parametrize(
    ("space", "bad", "reason"),
    [
        (["learning_rate=1e20,0.01"], 1e20, "the loss became"),
        (["schedule=exponential,cosine", "gamma=0.5:0.9"], "cosine", "--gamma is 0"),
        (["precision=fp32,fp16"], "fp16", "--precision is fp16, which needs a GPU"),
    ],
)
def test_what_cannot_be_trained_is_a_bad_trial_and_not_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], space: list[str], bad: float | str, reason: str
) -> None:
    sweep = Sweep(tmp_path / "sweep")
    dispatch(["sweep", "--sweep", str(sweep.folder), *BRIEF, *(f"--space={each}" for each in space)], {})
    assert f"pruned: {reason}" in capsys.readouterr().out
    ended = {row["status"]: next(iter(row["values"].values())) for row in trials(sweep)}
    assert ended.keys() == {"pruned", "finished"}
    assert ended["pruned"] == bad != ended["finished"]


def test_a_sweep_whose_trials_were_all_pruned_says_how_it_goes_on(tmp_path: Path) -> None:
    command = ["sweep", "--sweep", str(tmp_path), *BRIEF, "--space", "learning_rate=1e20,1e21"]
    with pytest.raises(RunError, match=r"all 1 trials were pruned .* with a --num-trials of more than 1"):
        dispatch([*command, "--num-trials", "1"], {})
    with pytest.raises(RunError, match="all 2 trials"):
        dispatch([*command, "--num-trials", "2"], {})


def test_what_cannot_be_done_is_said(tmp_path: Path, config: Config) -> None:
    for option in ("--num-trials", "--num-startup-trials", "--num-startup-epochs"):
        done = ["sweep", "--sweep", str(tmp_path / "a"), "--space", "epochs=1,2", option, "0"]
        with pytest.raises(SystemExit, match="2"):
            dispatch(done, {})
    with pytest.raises(SettingError, match="--space is missing"):
        dispatch(["sweep", "--sweep", str(tmp_path / "a")], {})
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="cannot be written"):
        dispatch(["sweep", "--sweep", str(tmp_path / "file"), "--space", "epochs=1,2"], {})
    with pytest.raises(RunError, match=r"study\.db is not there"):
        dispatch(["export", "--sweep", str(tmp_path)], {})
    with pytest.raises(SettingError, match="either --run or --sweep"):
        dispatch(["export", "--sweep", str(tmp_path), "--run", str(tmp_path)], {})
