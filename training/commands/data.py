"""Verbs of the way that images take to the model: pack them, measure how fast they come."""

from collections.abc import Sequence
from dataclasses import replace

from training.artifacts import Run
from training.commands.arguments import parse, recorded, run_folder
from training.commands.flags import MISSING
from training.data.shards.pack import pack
from training.options.config import ArchiveConfig
from training.options.execution import ExecutionOptions
from training.options.loader import BenchLoaderOptions, PackOptions
from training.profiling.bench_loader import bench_loader


def run_pack(args: Sequence[str], _: ArchiveConfig) -> None:
    """Pack images into shards."""
    options = parse("pack", PackOptions(MISSING, MISSING), args)
    pack(options.data, options.shards, images_per_shard=options.images_per_shard, broken=options.broken)


def run_bench_loader(args: Sequence[str], _: ArchiveConfig) -> None:
    """Measure loader and model."""
    train = recorded(args).train
    default = BenchLoaderOptions(run_folder(args), train.architecture, train.batch_size, train.loader)
    options = parse("bench-loader", default, args)
    chosen = replace(train, architecture=options.architecture, batch_size=options.batch_size, loader=options.loader)
    device = ExecutionOptions(device=options.device).torch_device()
    bench_loader(Run(options.run), chosen, device, seconds=options.seconds, report=options.report)
