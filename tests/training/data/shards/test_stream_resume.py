"""A training that streams, left in mid-epoch and gone on with, ends as one that was not, to the bit."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.training.runs import Signalling, assert_same_end
from training.artifacts import Run, read_json, write_json
from training.data.prepare import prepare
from training.data.shards.pack import pack
from training.engine.train import train
from training.errors import Terminated
from training.options.config import Config, LoaderConfig
from training.parallel.single import SingleProcess
from training.parallel.strategy import Pass, Sums


def test_streaming_goes_on_bit_for_bit(tmp_path: Path, config: Config) -> None:
    pack("synthetic", tmp_path / "shards", images_per_shard=45, broken="fail")
    whole, interrupted = Run(tmp_path / "whole"), Run(tmp_path / "interrupted")
    for run in (whole, interrupted):
        write_json(run.config, config)
        prepare(run, replace(config.data, data=str(tmp_path / "shards")))
    options = replace(config.train, epochs=2, loader=LoaderConfig(workers=2, shuffle_buffer=30))
    train(whole, options)
    with pytest.raises(Terminated):
        train(interrupted, options, strategy=Signalling(19, signal.SIGTERM))
    train(interrupted, options, resume=True)
    assert_same_end(interrupted, whole)


def test_other_workers_stream_what_is_left_of_the_epoch(tmp_path: Path, config: Config) -> None:
    pack("synthetic", tmp_path / "shards", images_per_shard=45, broken="fail")
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    write_json(run.config, config)
    prepare(run, replace(config.data, data=str(tmp_path / "shards")))
    options = replace(config.train, epochs=1, loader=LoaderConfig(workers=2, shuffle_buffer=30))
    with pytest.raises(Terminated):
        train(run, options, strategy=Signalling(5, signal.SIGTERM))
    seen = Counting()
    train(run, replace(options, loader=LoaderConfig(shuffle_buffer=30)), resume=True, strategy=seen)
    # 210 in batches of 16, five of which were taken.
    assert seen.num_images == 210 - 5 * 16
    (epoch,) = read_json(run.history, "train")["epochs"]
    assert epoch["train_accuracy"] * 210 == pytest.approx(round(epoch["train_accuracy"] * 210), abs=1e-6)


class Counting(SingleProcess):
    """Counts the images that it learns from."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.num_images = 0

    def forward_backward(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        self.num_images += len(images)
        return super().forward_backward(network, images, labels, how)
