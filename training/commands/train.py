"""Training: in this process, or in several that this one starts."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from training.artifacts import Run
from training.commands.arguments import parse, recorded, run_folder
from training.commands.launch import check_started, launch, launched
from training.data.batches import check_shards
from training.data.dataset import load_dataset
from training.engine.history import NoTrackers
from training.engine.train import train
from training.options.config import ArchiveConfig, Config
from training.options.execution import check_train
from training.options.parallel import check_training
from training.options.verbs import TrainOptions
from training.parallel.build import running
from training.parallel.world import choose_backend, started
from training.tracking.time_left import time_left
from training.tracking.tracker import tracked


def run_train(args: Sequence[str], _: ArchiveConfig) -> None:
    """Train a prepared run."""
    config = recorded(args)
    options = parse("train", TrainOptions(run_folder(args), config.train), args)
    parallel, device = options.parallel, options.execution.torch_device()
    check_training(options.train, device, parallel)
    check_train(options.train, device, is_stream=load_dataset(Run(options.run)).stream is not None)
    if parallel.runs_in_processes():
        if not started(os.environ, parallel.backend):
            # Before processes are started that would all refuse it.
            choose_backend(device, parallel.backend)
            check_shards(options.train.batch_size, parallel.num_shards(device))
            launch(["train", *args], Run(options.run), parallel, device)
            return
        check_started(parallel)
    with launched():
        _train(config, options)


def _train(config: Config, options: TrainOptions) -> None:
    """Train in this process, which may be one of several."""
    run = Run(options.run)
    # Elastic processes may be there for the first time or the tenth, and cannot know it.
    resume = options.resume or options.parallel.strategy == "elastic"
    with running(options.parallel, options.execution.torch_device()) as strategy:
        config = replace(config, train=options.train)
        following = tracked(run, config, options.track, time_left(options.train.epochs), resumed=resume)
        with following if strategy.world.is_main else nullcontext(NoTrackers()) as follower:
            train(run, options.train, options.execution, resume=resume, strategy=strategy, follower=follower)
