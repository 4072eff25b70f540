"""Elastic training ends by itself, whoever dies or joins, and every image of every epoch is learnt from once."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from training.artifacts import Run, read_json
from training.data.prepare import prepare
from training.data.shards.pack import pack
from training.engine.checkpoint import Checkpoints
from training.options.config import Config

ROOT = Path(__file__).resolve().parents[3]
NUM_IMAGES = 210  # of the training split of the preset synthetic
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def streaming(run: Run, config: Config, tmp_path: Path) -> Run:
    """The same run and images, but read from shards as it trains."""
    pack("synthetic", tmp_path / "shards", images_per_shard=45, broken="fail")
    prepare(run, replace(config.data, data=str(tmp_path / "shards")))
    return run


@pytest.fixture
def start(run: Run, tmp_path: Path) -> Iterator[Start]:
    """Start nodes; all that is left of them is ended afterwards."""
    nodes: list[subprocess.Popen[bytes]] = []

    def begin(*options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "training", "train", "--run", str(run.folder), "--strategy", "elastic"]
        command += ["--learning-rate", "0.005", "--checkpoint-steps", "3", "--keep-checkpoints", "99", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (tmp_path / f"node-{len(nodes)}.log").open("wb") as log:
            nodes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT))
        return nodes[-1]

    yield begin
    for node in nodes:
        for worker in workers(node):
            worker.kill()
        node.kill()
        node.wait(timeout=30)
    for log in sorted(tmp_path.glob("*.log")):
        print(f"{log.name}:\n{log.read_text()}")


def workers(node: subprocess.Popen[Any]) -> list[psutil.Process]:
    if node.poll() is not None:
        return []
    try:
        return psutil.Process(node.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def newest_step(run: Run) -> int:
    paths = Checkpoints(run.checkpoints, 99).paths()
    return int(paths[-1].stem.removeprefix("step-")) if paths else 0


def checkpoints(run: Run) -> list[dict[str, Any]]:
    return [torch.load(path, weights_only=True)["engine"] for path in Checkpoints(run.checkpoints, 99).paths()]


def num_given(source: dict[str, Any]) -> int:
    """How many images of the epoch a source had given; the last two of 210 join the 13th batch of 16."""
    if "position" in source:
        return int(source["position"])
    num_batches = sum(taken for *_, taken in source["parts"])
    return NUM_IMAGES if num_batches == 13 else 16 * num_batches


def assert_nothing_was_lost(run: Run, num_epochs: int) -> None:
    """Wherever training was left, as many images were learnt from as had been given; epochs are whole."""
    states = checkpoints(run)
    assert all(state["progress"]["epoch_images"] == num_given(state["source"]) for state in states)
    steps_per_epoch = states[-1]["progress"]["num_steps"] / num_epochs
    assert states[-1]["progress"]["num_steps"] == num_epochs * round(steps_per_epoch)
    history = read_json(run.history, "train")["epochs"]
    assert [each["epoch"] for each in history] == list(range(1, num_epochs + 1))
    # A share of all images, and of no other number near it.
    for each in history:
        assert each["train_accuracy"] * NUM_IMAGES == pytest.approx(
            round(each["train_accuracy"] * NUM_IMAGES), abs=1e-6
        )


def test_a_killed_process_is_restarted_and_goes_on(run: Run, start: Start, tmp_path: Path) -> None:
    node = start("--epochs", "2", "--processes", "2", "--max-restarts", "2", "--local-batch-norm")
    until(lambda: newest_step(run) >= 6, seconds=100)
    workers(node)[1].send_signal(signal.SIGKILL)
    assert node.wait(timeout=120) == 0
    place = re.search(r"resumed in epoch (\d), after step (\d+)", (tmp_path / "node-0.log").read_text())
    assert place is not None
    assert (int(place[1]), int(place[2])) >= (1, 6), "the second start is no beginning from scratch"
    assert_nothing_was_lost(run, num_epochs=2)


@pytest.mark.soak
def test_a_killed_process_goes_on_with_its_shards(streaming: Run, start: Start, tmp_path: Path) -> None:
    node = start("--epochs", "1", "--processes", "2", "--max-restarts", "2", "--local-batch-norm")
    until(lambda: newest_step(streaming) >= 3, seconds=100)
    workers(node)[1].send_signal(signal.SIGKILL)
    assert node.wait(timeout=120) == 0
    assert "resumed in epoch" in (tmp_path / "node-0.log").read_text()
    assert_nothing_was_lost(streaming, num_epochs=1)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_three_kills_and_a_late_node_change_nothing(run: Run, start: Start, tmp_path: Path) -> None:
    undisturbed = Run(tmp_path / "undisturbed")
    shutil.copytree(run.folder, undisturbed.folder)
    command = [sys.executable, "-m", "training", "train", "--run", str(undisturbed.folder)]
    subprocess.run([*command, "--learning-rate", "0.005", "--epochs", "6"], cwd=ROOT, check=True, timeout=300)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--epochs", "6", "--processes", "1", "--nodes", "1:3", "--rendezvous", f"localhost:{port}"]
    options += ["--join-seconds", "3"]
    nodes = [start(*options), start(*options)]
    for number in range(3):
        before = newest_step(run)
        until(lambda before=before: newest_step(run) >= before + 9, seconds=200)  # type: ignore[misc]
        victim = nodes[number % 2]
        until(lambda victim=victim: bool(workers(victim)), seconds=60)  # type: ignore[misc]
        workers(victim)[0].send_signal(signal.SIGKILL)
        if number == 0:
            nodes.append(start(*options))
    assert [node.wait(timeout=400) for node in nodes] == [0, 0, 0]
    assert_nothing_was_lost(run, num_epochs=6)
    assert len(checkpoints(run)[-1]["random"]) == 3, "the late one was there at the end"
    ends = [read_json(each.history, "train")["epochs"] for each in (run, undisturbed)]
    print([[(each["train_loss"], each["validation_accuracy"]) for each in end] for end in ends])
    # Thirty images: one of them is 0.033.
    disturbed, alone = (max(each["validation_accuracy"] for each in end) for end in ends)
    assert disturbed == pytest.approx(alone, abs=0.04)
