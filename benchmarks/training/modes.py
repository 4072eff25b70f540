"""What can be asked for, and how long it takes: without torch, which the command line need not wait for."""

from dataclasses import dataclass
from typing import Literal, get_args

TableName = Literal["pairwise", "chain", "convolution", "copies", "forms", "strategies"]
TABLES: tuple[TableName, ...] = get_args(TableName)


@dataclass(frozen=True)
class Mode:
    """How long each call is measured, and what is trained."""

    seconds: float
    batch_sizes: tuple[int, ...]
    preset: str
    num_epochs: int


MODES = {
    # Does it all work? No figure of it means anything.
    "quick": Mode(seconds=0.01, batch_sizes=(1, 4), preset="synthetic", num_epochs=2),
    "default": Mode(seconds=1.0, batch_sizes=(1, 8, 32, 128), preset="digits", num_epochs=3),
}
