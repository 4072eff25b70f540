"""A training that is left at any step and gone on with ends as one that was not, to the bit."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training.runs import NewRun, Signalling, assert_same_end
from training.artifacts import read_json, write_json
from training.engine.checkpoint import Checkpoints, random_state, set_random_state
from training.engine.interruption import Interruption
from training.engine.train import train
from training.errors import HungUp, Interrupted, RunError, SettingError, Terminated
from training.options.config import AugmentConfig, Config, LoaderConfig, TrainConfig
from training.options.execution import ExecutionOptions
from training.parallel.single import SingleProcess
from training.parallel.strategy import Pass, Sums

ROOT = Path(__file__).resolve().parents[3]
NUM_BATCHES = 13  # of 16 of the 210 synthetic images


@pytest.fixture
def everything(config: Config) -> TrainConfig:
    """Every part of the state that a checkpoint holds is in use."""
    return replace(
        config.train,
        epochs=2,
        accumulation=3,
        clip_norm=1.0,
        label_smoothing=0.1,
        ema_decay=0.9,
        augment=AugmentConfig(rotation_degrees=10, flip=True),
    )


@pytest.fixture
def no_nohup() -> Iterator[None]:
    """SIGHUP ends processes, whatever the tests themselves were started with."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("no_nohup")
@pytest.mark.parametrize(
    ("number", "error", "schedule"),
    [
        (signal.SIGTERM, Terminated, "one-cycle"),
        (signal.SIGINT, Interrupted, "cosine"),
        (signal.SIGHUP, HungUp, "cosine"),
    ],
    ids=["SIGTERM", "SIGINT", "SIGHUP"],
)
def test_signalled_anywhere_and_resumed_is_the_whole_run_bit_for_bit(
    new_run: NewRun, everything: TrainConfig, number: signal.Signals, error: type[Interrupted], schedule: Any
) -> None:
    everything = replace(everything, schedule=schedule)
    whole, interrupted = new_run(), new_run()
    train(whole, everything)
    before = signal.getsignal(number)
    # Twice in a run: in the middle of an epoch, then at a batch that chance picks.
    with pytest.raises(
        error, match=r"epoch 1/2, step 3 of 5; `python -m training train .* --resume` goes on"
    ) as stopped:
        train(interrupted, everything, strategy=Signalling(8, number))
    assert stopped.value.exit_code == 128 + number
    assert not interrupted.weights_card.exists()
    batch = int(np.random.default_rng().integers(1, 2 * NUM_BATCHES - 9))
    with pytest.raises(error):
        train(interrupted, everything, strategy=Signalling(batch, number), resume=True)
    assert signal.getsignal(number) is before
    # What the process did in between is nothing to it.
    torch.rand(7)
    train(interrupted, everything, resume=True)
    assert_same_end(interrupted, whole)


def test_under_nohup_the_end_of_the_terminal_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            signal.raise_signal(signal.SIGHUP)
        assert interruption.error is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_killed_and_resumed_is_the_whole_run_bit_for_bit(
    new_run: NewRun, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = new_run(), new_run()
    options = replace(config.train, epochs=2, schedule="exponential")
    train(whole, options)
    write_json(killed.config, replace(config, train=options))
    # A process that ends itself as if from outside, in the second epoch, with no chance to tidy up.
    program = (
        "import os, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from tests.training.runs import Signalling\n"
        "from training.artifacts import Run, read_json\n"
        "from training.options.config import config_from\n"
        "from training.options.execution import ExecutionOptions\n"
        "from training.engine.train import train\n"
        "torch.set_num_threads(1)\n"
        "run = Run(Path(sys.argv[1]))\n"
        "config = config_from(read_json(run.config, 'prepare')).train\n"
        "train(run, config, ExecutionOptions(checkpoint_steps=3), strategy=Signalling(20, signal.SIGKILL))\n"
    )
    command = [sys.executable, "-c", program, str(killed.folder)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in Checkpoints(killed.checkpoints, 2).paths()] == [
        "step-00000015.pt",
        "step-00000018.pt",
    ]
    capsys.readouterr()
    train(killed, options, resume=True)
    assert "resumed in epoch 2, after step 5" in capsys.readouterr().out
    assert_same_end(killed, whole)


def test_resume_without_a_checkpoint_begins_and_of_a_finished_run_changes_nothing(
    new_run: NewRun, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, run = new_run(), new_run()
    options = replace(config.train, epochs=1)
    train(whole, options)
    train(run, options, resume=True)
    assert "from the beginning" in capsys.readouterr().out
    assert_same_end(run, whole)
    # Weights of a later epoch, of a process that was killed before its checkpoint, do not stay.
    run.weights.write_bytes(b"others")
    train(run, options, resume=True)
    assert_same_end(run, whole)


def test_resume_refuses_other_options_as_they_are_given(new_run: NewRun, config: Config) -> None:
    run = new_run()
    options = replace(config.train, epochs=1)
    train(run, options)
    others = replace(
        options,
        learning_rate=0.1,
        architecture="resnet32",
        channels_last=False,
        augment=replace(options.augment, flip=True),
    )
    with pytest.raises(SettingError) as refused:
        train(run, others, resume=True)
    assert str(refused.value) == (
        "--resume goes on as its checkpoint began: leave out --model resnet32 (it has resnet20), --learning-rate 0.1 "
        "(it has 0.02), --no-channels-last (it has True), --flip (it has False), or train anew"
    )


def test_resume_takes_other_workers_and_checkpoints_that_lack_newer_options(
    new_run: NewRun, everything: TrainConfig
) -> None:
    whole, interrupted = new_run(), new_run()
    train(whole, everything)
    with pytest.raises(Terminated):
        train(interrupted, everything, strategy=Signalling(5, signal.SIGTERM))
    checkpoints = Checkpoints(interrupted.checkpoints, 2)
    state = checkpoints.load_newest()
    assert state is not None
    del state["train"]["loader"], state["train"]["patience"]
    checkpoints.save(state["engine"]["progress"]["num_steps"], state)
    train(interrupted, replace(everything, loader=LoaderConfig(workers=1, prefetch=1)), resume=True)
    assert interrupted.weights.read_bytes() == whole.weights.read_bytes()


@pytest.mark.parametrize(("epochs", "patience"), [(2, None), (3, 1)])
def test_a_signal_after_the_last_step_stops_and_resuming_finishes(
    new_run: NewRun, config: Config, epochs: int, patience: int | None
) -> None:
    # No epoch is better than the first: the average stays where the first step put it.
    options = replace(config.train, epochs=epochs, ema_decay=1 - 1e-16, patience=patience)
    whole, interrupted = new_run(), new_run()
    train(whole, options)
    with pytest.raises(Terminated, match="stopped after the last epoch; "):
        train(interrupted, options, strategy=SignallingAtTheEnd(2))
    assert not interrupted.weights_card.exists()
    train(interrupted, options, resume=True)
    assert_same_end(interrupted, whole)


class SignallingAtTheEnd(SingleProcess):
    """Sends its own process SIGTERM in the validation after an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__(torch.device("cpu"))
        self.left = epoch

    def evaluate(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)
        return super().evaluate(network, images, labels, how)


def test_checkpoints_are_few_and_begun_anew(new_run: NewRun, config: Config) -> None:
    run = new_run()
    execution = ExecutionOptions(checkpoint_steps=4, keep_checkpoints=3)
    train(run, replace(config.train, epochs=1), execution)
    names = [path.name for path in run.checkpoints.iterdir()]
    assert sorted(names) == ["step-00000008.pt", "step-00000012.pt", "step-00000013.pt"]
    train(run, replace(config.train, epochs=1, batch_size=100), ExecutionOptions(keep_checkpoints=3))
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000002.pt"]


def test_a_checkpoint_that_cannot_be_read_is_named(new_run: NewRun, config: Config) -> None:
    run = new_run()
    run.checkpoints.mkdir()
    (run.checkpoints / "step-00000003.pt").write_bytes(b"half of")
    with pytest.raises(RunError, match=r"step-00000003\.pt is no checkpoint; remove it"):
        train(run, config.train, resume=True)


@pytest.mark.parametrize("batch", [13, 26])
def test_the_last_step_of_an_epoch_may_have_fewer_batches(new_run: NewRun, everything: TrainConfig, batch: int) -> None:
    whole, interrupted = new_run(), new_run()
    train(whole, everything)
    with pytest.raises(Terminated, match="step 5 of 5"):
        train(interrupted, everything, strategy=Signalling(batch, signal.SIGTERM))
    train(interrupted, everything, resume=True)
    assert_same_end(interrupted, whole)


@pytest.mark.parametrize("damaged", [b"PK", b"weight 7", b"\x00\x00\x80\x3f" * 10, b"PK\x05\x06"])
def test_a_checkpoint_that_was_damaged_is_named(tmp_path: Path, damaged: bytes) -> None:
    """In a header, in a name, in a weight, in the directory at its end."""
    checkpoints = Checkpoints(tmp_path, 1)
    path = checkpoints.save(3, {f"weight {index}": torch.ones(100) for index in range(100)})
    content = path.read_bytes()
    assert damaged in content
    path.write_bytes(content.replace(damaged, bytes(255 - byte for byte in damaged), 1))
    with pytest.raises(RunError, match=r"step-00000003\.pt is no checkpoint; remove it"):
        checkpoints.load_newest()


def test_all_random_generators_go_on_where_they_were() -> None:
    def draw() -> list[float]:
        legacy = np.random.rand()
        return [random.random(), legacy, float(torch.rand(())), random.gauss(0, 1)]

    draw()
    state = random_state()
    first = draw()
    draw()
    set_random_state(state)
    assert draw() == first


def test_resume_from_the_command_line(new_run: NewRun, config: Config) -> None:
    run = new_run()
    write_json(run.config, replace(config, train=replace(config.train, epochs=1)))
    command = [sys.executable, "-m", "training", "train", "--run", str(run.folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for extra in (["--checkpoint-steps", "5", "--keep-checkpoints", "1"], ["--resume", "--device", "cpu"]):
        done = subprocess.run(
            [*command, *extra], check=False, cwd=ROOT, env=environment, timeout=120, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert "resumed in epoch 2, after step 0" in done.stdout
    assert len(list(run.checkpoints.iterdir())) == 1
    assert read_json(run.history, "train")["kept_epoch"] == 1
