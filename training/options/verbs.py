"""The options of each verb; a docstring is what `--help` says."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from training.artifacts import Variant
from training.errors import SettingError
from training.options.config import (
    MOST_IMAGES,
    ArchiveConfig,
    Config,
    DataConfig,
    ExportConfig,
    PresetName,
    QuantizeConfig,
    TrainConfig,
)
from training.options.execution import ExecutionOptions
from training.options.parallel import ParallelOptions

Tool = Literal["tensorboard", "mlflow"]


@dataclass(frozen=True)
class TrackingOptions:
    """Where to follow the epochs of a training, besides its record.json."""

    tracking: tuple[Tool, ...] = ("tensorboard",)
    """tensorboard, mlflow or both; without a value, none."""
    mlflow: Path | None = None
    """With --tracking mlflow: folder of its store, the database and the files; by default mlruns."""

    def __post_init__(self) -> None:
        if self.mlflow is not None and "mlflow" not in self.tracking:
            raise SettingError(f"--mlflow is {self.mlflow}, which goes with --tracking mlflow")


@dataclass(frozen=True)
class PrepareOptions:
    """Images become arrays in a new run, whose folder is printed."""

    preset: PresetName
    """The defaults of all other options, those of the later stages included."""
    name: str
    """Name of the model, in the model store and in requests."""
    data: DataConfig
    runs: Path = Path("runs")
    """Folder in which the run's own folder is made."""


@dataclass(frozen=True)
class TrainOptions:
    """Train the network. Defaults are the run's own; without --run, help shows those of the preset digits."""

    run: Path
    """Folder of the run."""
    train: TrainConfig
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    resume: bool = False
    """Go on from the run's last checkpoint, with the options that it was begun with. On one process on
    the CPU, the result is bit for bit that of an uninterrupted training."""
    track: TrackingOptions = field(default_factory=TrackingOptions)


@dataclass(frozen=True)
class EvaluateOptions:
    """Measure a trained run on its test images (--run), or what a gateway has logged of its answers (--log)."""

    run: Path | None = None
    """Folder of the run."""
    log: Path | None = None
    """Folder of the prediction log. It gives the figures of each version, and the accuracy if there was feedback."""
    report: Path | None = None
    """With --log: file that gets the figures as JSON."""
    images: Path | None = None
    """With --log: folder that gets the logged images that have a label, one folder per class."""
    name: str | None = None
    """With --images: the model whose images they are, if the log has several."""


@dataclass(frozen=True)
class QuantizeOptions:
    """Make the int8 variants and measure them. Defaults are the run's own."""

    run: Path
    """Folder of the run."""
    quantize: QuantizeConfig
    resume: bool = False
    """With --qat: go on from its last checkpoint, with the options that it was begun with."""
    track: TrackingOptions = field(default_factory=TrackingOptions)

    def __post_init__(self) -> None:
        if self.resume and not self.quantize.qat:
            raise SettingError("--resume goes with --qat")


@dataclass(frozen=True)
class ExportOptions:
    """Make the TorchScript graphs of all variants, check them, compare them. Defaults are the run's own."""

    run: Path
    """Folder of the run, unless --sweep names a sweep."""
    export: ExportConfig
    sweep: Path | None = None
    """Instead of --run, the folder of a sweep: its best run is evaluated, quantized and exported."""


@dataclass(frozen=True)
class GraphOptions:
    """Print a variant's TorchScript graph as exported, frozen, optimised and as last run, with its operators."""

    run: Path
    """Folder of an exported run."""
    variant: Variant = "fp32"
    """A TorchScript variant; aoti has no graph to show."""
    batch_size: int = 8
    """Images per batch. torch fuses the operators of the last graph for batches of this size."""

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= MOST_IMAGES:
            raise SettingError(f"--batch-size is {self.batch_size}; allowed is 1 to {MOST_IMAGES}")


@dataclass(frozen=True)
class ArchiveOptions:
    """Put the graphs into the model store, as archives for TorchServe."""

    run: Path
    """Folder of the run."""
    name: str
    """Name of the model, in the model store and in requests."""
    archive: ArchiveConfig


@dataclass(frozen=True)
class PipelineOptions:
    """All stages in a row: from images to archives in the model store."""

    config: Config
    archive: ArchiveConfig
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    track: TrackingOptions = field(default_factory=TrackingOptions)
    runs: Path = Path("runs")
    """Folder in which the run's own folder is made."""


@dataclass(frozen=True)
class SweepOptions:
    """Train one run after another, each with other options, and find those of the highest validation accuracy.

    The same command goes on with a sweep that was stopped, however it was stopped.
    """

    sweep: Path
    """Folder of the sweep: its study, its data and the run of each trial."""
    space: tuple[str, ...] = field(metadata={"repeated": True})
    """An option of training to search. Repeat --space for each option. NAME=LOW:HIGH takes numbers from LOW to HIGH.
    NAME=log:LOW:HIGH takes them on a logarithmic scale. NAME=VALUE,VALUE,... takes one of the values."""
    config: Config
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    track: TrackingOptions = field(default_factory=TrackingOptions)
    num_trials: int = 20
    """Trials of the sweep in all, those of earlier calls included."""
    num_startup_trials: int = 5
    """Number of first trials, which have random values and are never pruned. To prune a trial is to stop it early,
    because it does worse than the median of the finished ones."""
    num_startup_epochs: int = 1
    """Epochs that every trial may take before it can be pruned."""

    def __post_init__(self) -> None:
        least = {"num_trials": 1, "num_startup_trials": 1, "num_startup_epochs": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                option = name.replace("_", "-")
                raise SettingError(f"--{option} is {getattr(self, name)}; allowed is {value} or more")


@dataclass(frozen=True)
class CompareOptions:
    """Put runs side by side: how their options differ, what they reached, how they learnt."""

    run: tuple[Path, ...] = field(metadata={"flag": "RUN"})
    """Folders of runs, two or more."""
    runs: Path = Path("runs")
    """Folder in which the comparison's own folder is made."""
