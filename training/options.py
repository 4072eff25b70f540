"""The options of each stage; a docstring is what `--help` says."""

from dataclasses import dataclass
from pathlib import Path

from training.config import (
    ArchiveConfig,
    Config,
    DataConfig,
    ExportConfig,
    PresetName,
    TrainConfig,
)


@dataclass(frozen=True)
class PrepareOptions:
    """Images become arrays in a new run, whose folder is printed."""

    preset: PresetName
    """The defaults of all other options, those of the later stages included."""
    name: str
    """Of the model, in the model store and in requests."""
    data: DataConfig
    runs: Path = Path("runs")
    """Folder in which the run gets its own."""


@dataclass(frozen=True)
class TrainOptions:
    """Find the weights. Defaults are the run's own; without --run, help shows those of the preset digits."""

    run: Path
    """Folder of the run."""
    train: TrainConfig


@dataclass(frozen=True)
class RunOptions:
    """One run, nothing to choose."""

    run: Path
    """Folder of the run."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure a trained run on its test images (--run), or what a gateway has logged of its answers (--log)."""

    run: Path | None = None
    """Folder of the run."""
    log: Path | None = None
    """Folder of the prediction log: figures of each version, with its accuracy where feedback came back."""
    report: Path | None = None
    """With --log: file that gets the figures as JSON."""
    images: Path | None = None
    """With --log: folder that gets the logged images that have a label, one folder per class."""
    name: str | None = None
    """With --images: the model whose images they are, if the log has several."""


@dataclass(frozen=True)
class ExportOptions:
    """Make the TorchScript graphs of all variants, check them, compare them. Defaults are the run's own."""

    run: Path
    """Folder of the run."""
    export: ExportConfig


@dataclass(frozen=True)
class ArchiveOptions:
    """Put the graphs into the model store, as archives for TorchServe."""

    run: Path
    """Folder of the run."""
    name: str
    """Of the model, in the model store and in requests."""
    archive: ArchiveConfig


@dataclass(frozen=True)
class PipelineOptions:
    """All stages in a row: from images to archives in the model store."""

    config: Config
    archive: ArchiveConfig
    runs: Path = Path("runs")
    """Folder in which the run gets its own."""
