"""A training in several processes is stopped, killed, or fails, and the command that started it says what is true."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.training.commands.test_elastic import newest_step, until, workers
from training.artifacts import Run, read_json
from training.engine.checkpoint import Checkpoints

ROOT = Path(__file__).resolve().parents[3]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(run: Run) -> Iterator[Start]:
    """Start a training that does not end by itself; what is left of it is ended afterwards."""
    started: list[subprocess.Popen[str]] = []

    def begin(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "training", "train", "--run", str(run.folder), "--strategy", "ddp"]
        command += ["--processes", "2", "--epochs", "99", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield begin
    for each in started:
        for process in workers(each):
            process.kill()
        each.kill()
        each.communicate(timeout=30)


def test_an_error_nobody_foresaw_is_told_by_its_kind_and_message(run: Run, start: Start) -> None:
    run.tensorboard.write_text("mine")  # where TensorBoard is about to make a folder
    training = start()
    out, err = training.communicate(timeout=120)
    assert training.returncode == 1, out
    last = err.splitlines()[-1]
    assert last.startswith("error: process 0 failed, its traceback is above: FileExistsError: "), err
    assert "Traceback (most recent call last)" in err


def test_a_file_that_cannot_be_written_is_told_by_its_name(run: Run, start: Start) -> None:
    run.weights.mkdir()  # where the main process is about to write a file
    training = start()
    out, err = training.communicate(timeout=120)
    assert training.returncode == 1, out
    assert err.splitlines()[-1] == f"error: {run.weights} cannot be written: Is a directory"


def test_a_process_that_is_killed_is_the_one_that_is_named(run: Run, start: Start) -> None:
    training = start("--checkpoint-steps", "3")
    until(lambda: newest_step(run) >= 3, seconds=100)
    workers(training)[1].kill()
    _, err = training.communicate(timeout=120)
    assert training.returncode == 1
    assert err.splitlines()[-1] == "error: process 1 was ended by SIGKILL and could not say why"


def test_a_signal_ends_all_processes_after_a_checkpoint(run: Run, start: Start) -> None:
    # Readers of images are in the processes' groups, to which the signal goes.
    training = start("--checkpoint-steps", "3", "--workers", "1")
    until(lambda: newest_step(run) >= 3, seconds=100)
    training.send_signal(signal.SIGTERM)
    _, err = training.communicate(timeout=120)
    assert training.returncode == 143
    newest = Checkpoints(run.checkpoints, 1).paths()[-1]
    assert err.splitlines()[-1] == (
        f"error: training was stopped; --resume goes on from its newest checkpoint, {newest}"
    )
    record = read_json(run.record, "train")
    assert record["status"] == "interrupted", "it saw the signal, and left a checkpoint for it"
    assert "stopped after epoch" in record["reason"]


def test_a_signal_before_the_first_step_promises_no_checkpoint(run: Run, start: Start) -> None:
    training = start()
    until(lambda: len(workers(training)) == 2, seconds=100)
    begun = workers(training)
    training.send_signal(signal.SIGTERM)
    _, err = training.communicate(timeout=120)
    assert training.returncode == 143
    assert not [process for process in begun if process.is_running()]
    assert err.splitlines()[-1] == "error: training was stopped; it has left no checkpoint"


ENDS_ITS_CHILDREN = """
import signal, subprocess, sys
from training.commands import launch
launch.STOP_SECONDS = 1
sleeps = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
deaf = [sys.executable, "-c", sleeps[2].replace("import time", "import signal, time; signal.signal(15, lambda *_: 0)")]
begun = [subprocess.Popen(each, stdout=subprocess.PIPE) for each in (sleeps, deaf)]
for each in begun:
    each.stdout.readline()
launch.end_children(signal.SIGTERM)
print([each.wait(0) for each in begun])
"""


def test_processes_that_the_agent_does_not_know_yet_are_ended_too() -> None:
    command = [sys.executable, "-c", ENDS_ITS_CHILDREN]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == "[0, 0]\n", ended.stderr


def test_processes_end_with_the_command_that_is_killed(run: Run, start: Start) -> None:
    training = start("--checkpoint-steps", "3")
    until(lambda: newest_step(run) >= 3, seconds=100)
    processes = workers(training)
    assert len(processes) == 2
    training.kill()
    _, left = psutil.wait_procs(processes, timeout=60)
    for each in left:
        each.kill()
    assert not left
    assert read_json(run.record, "train")["status"] == "interrupted"
