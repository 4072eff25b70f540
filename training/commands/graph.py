"""What became of the model's code."""

from collections.abc import Sequence

from training.artifacts import Run
from training.commands.arguments import parse, run_folder
from training.export.show_graph import show_graph
from training.options.config import ArchiveConfig
from training.options.verbs import GraphOptions


def run_graph(args: Sequence[str], _: ArchiveConfig) -> None:
    """Show the graph of an exported run."""
    options = parse("graph", GraphOptions(run_folder(args)), args)
    print(show_graph(Run(options.run), options.variant, options.batch_size))
