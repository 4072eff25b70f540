"""From options to the strategy that they name, in a process that is one of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from training.options.parallel import ParallelOptions
from training.parallel.single import SingleProcess
from training.parallel.strategy import Strategy
from training.parallel.world import World, joined

# Each strategy imports its part of torch.distributed, which together take twice as long as torch itself.
# ruff: noqa: PLC0415


@contextmanager
def running(options: ParallelOptions, device: torch.device) -> Iterator[Strategy]:
    """Be one of the strategy's processes inside, on the device, or on this process's own of several GPUs.

    Raises SettingError where machine, number of processes and strategy do not go together.
    """
    match options.strategy:
        case "single":
            yield SingleProcess(device)
            return
        case "data-parallel":
            from training.parallel.data_parallel import DataParallel

            yield DataParallel(device)
            return
    with joined(device, options.backend) as world, among(options, world) as strategy:
        yield strategy


@contextmanager
def among(options: ParallelOptions, world: World) -> Iterator[Strategy]:
    """Be one of the strategy's processes inside, having joined the others."""
    parts = options.num_micro_batches()
    match options.strategy:
        case "ddp" | "elastic":
            from training.parallel.ddp import Replicas

            yield Replicas(world, local_batch_norm=options.local_batch_norm)
        case "model-parallel":
            from training.parallel.pipelines.model_parallel import PipelinedStages

            yield PipelinedStages(world, num_micro_batches=parts)
        case "hybrid":
            from training.parallel.pipelines.hybrid import ReplicatedStages

            yield ReplicatedStages(world, num_stages=options.num_stages(), num_micro_batches=parts)
        case "fsdp":
            from training.parallel.fsdp import Sharded

            yield Sharded(world, cpu_offload=options.cpu_offload)
        case "rpc":
            from training.parallel.pipelines.rpc import RemoteStages, serving

            with serving(world):
                yield RemoteStages(world, num_micro_batches=parts)
        case _:
            raise AssertionError(f"{options.strategy} runs in one process")
