"""Runs for tests that train: left at a batch, gone on with, held against each other."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.artifacts import Run
from training.engine.checkpoint import Checkpoints
from training.engine.history import EpochRecord, Follower
from training.parallel.single import SingleProcess
from training.parallel.strategy import Pass, Sums

NewRun = Callable[[], Run]


class Signalling(SingleProcess):
    """Sends its own process a signal while a batch is on its way."""

    def __init__(self, batch: int, number: signal.Signals) -> None:
        super().__init__(torch.device("cpu"))
        self.left = batch
        self.number = number

    def forward_backward(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(self.number)
        return super().forward_backward(network, images, labels, how)


def follow(follower: Follower, *epochs: EpochRecord) -> None:
    """Tell of a training with these epochs."""
    follower.begin()
    for each in epochs:
        follower.epoch(each)


@contextmanager
def another_process_at(folder: Path) -> Iterator[None]:
    """Another process holds the folder, as one does that trains there."""
    program = "import pathlib, sys; from training.lock import held\n"
    program += "with held(pathlib.Path(sys.argv[1]), ''): print('held', flush=True), sys.stdin.read()"
    command = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate()


def newest(run: Run) -> dict[str, Any]:
    """What the last checkpoint holds but the time that was taken."""
    state = Checkpoints(run.checkpoints, 2).load_newest()
    assert state is not None
    for record in state["engine"]["progress"]["history"]:
        del record["seconds"]
    return state


def assert_equal(first: object, second: object, where: str = "state") -> None:
    assert type(first) is type(second), where
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        assert torch.equal(first, second), where
    elif isinstance(first, dict) and isinstance(second, dict):
        assert first.keys() == second.keys(), where
        for name, value in first.items():
            assert_equal(value, second[name], f"{where}.{name}")
    elif isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        assert len(first) == len(second), where
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_equal(one, other, f"{where}[{index}]")
    else:
        assert first == second, where


def assert_same_end(interrupted: Run, whole: Run) -> None:
    assert interrupted.weights.read_bytes() == whole.weights.read_bytes()
    assert interrupted.weights_card.read_bytes() == whole.weights_card.read_bytes()
    assert_equal(newest(interrupted), newest(whole))
