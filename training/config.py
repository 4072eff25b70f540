"""Every option of training, declared once: its default, its help, its unit. The command line derives from this."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from training.artifacts import Variant
from training.errors import SettingError

Architecture = Literal["resnet20", "resnet32", "resnet56", "resnet18", "resnet34", "resnet50"]
Compile = Literal["trace", "script"]
PresetName = Literal["digits", "synthetic", "images"]
MOST_IMAGES = 1024  # that a handler takes at once


@dataclass(frozen=True)
class DataConfig:
    """What is learnt from, and the form it is brought into."""

    data: str
    """digits or synthetic (both are built in), or a folder that holds one folder of images per class."""
    channels: Literal[1, 3]
    """1 reads images as grey, 3 as RGB."""
    height: int
    """Pixels; images are scaled and cropped at the centre to fit, their aspect kept."""
    width: int
    """Pixels."""

    def __post_init__(self) -> None:
        _at_least("height", self.height, 1)
        _at_least("width", self.width, 1)


@dataclass(frozen=True)
class AugmentConfig:
    """How far a training image may be moved, at random, each time it is seen."""

    rotation_degrees: float = 0.0
    """Largest turn to either side."""
    shear_degrees: float = 0.0
    """Largest slant to either side."""
    translation: float = 0.0
    """Largest shift in each direction, as a fraction of the side."""
    scaling: float = 0.0
    """Largest change of size: 0.1 gives 0.9 to 1.1."""
    flip: bool = False
    """Mirror every other image, left to right."""

    def __post_init__(self) -> None:
        for name in ("rotation_degrees", "shear_degrees", "translation"):
            _at_least(name, getattr(self, name), 0)
        if not 0 <= self.scaling < 1:
            raise SettingError(f"--scaling is {self.scaling}; allowed is 0 up to, but not including, 1")
        if self.shear_degrees >= 90:
            raise SettingError(f"--shear-degrees is {self.shear_degrees}; allowed is less than 90")


@dataclass(frozen=True)
class TrainConfig:
    """How the weights are found."""

    architecture: Annotated[Architecture, tyro.conf.arg(name="model")]
    """resnet20, 32 and 56 are made for small images, resnet18, 34 and 50 for large ones."""
    epochs: int
    """Passes over the training images."""
    seed: int = 0
    """Of the weights, the order of images and their augmentation; the split of the data does not depend on it."""
    batch_size: int = 64
    """Images per step."""
    learning_rate: float = 0.1
    """Its largest value: it rises linearly, then falls along a cosine to zero."""
    warmup: float = 0.15
    """Fraction of all steps during which the learning rate rises."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 5e-4
    """On the weights of convolutions and of the linear layer alone."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)

    def __post_init__(self) -> None:
        _at_least("epochs", self.epochs, 1)
        _at_least("batch-size", self.batch_size, 2)
        _at_least("seed", self.seed, 0)
        _at_least("weight-decay", self.weight_decay, 0)
        if not self.learning_rate > 0:
            raise SettingError(f"--learning-rate is {self.learning_rate}; allowed is more than 0")
        for name in ("momentum", "warmup"):
            if not 0 < getattr(self, name) < 1:
                raise SettingError(f"--{name} is {getattr(self, name)}; allowed is more than 0 and less than 1")


@dataclass(frozen=True)
class ExportConfig:
    """How the graphs are made."""

    compile: Compile = "trace"
    """trace records one run of the model, script compiles its code."""


@dataclass(frozen=True)
class Config:
    """All that decides a run's results; each run folder keeps its own as config.json."""

    preset: PresetName
    """The defaults of all other options."""
    name: str
    """Of the model, in the model store and in requests."""
    data: DataConfig
    train: TrainConfig
    export: ExportConfig = field(default_factory=ExportConfig)


@dataclass(frozen=True)
class ArchiveConfig:
    """Where the archives go; this belongs to one call, so runs do not keep it."""

    model_store: Path = Path("model_store")
    """Folder of the archives; its default is the environment's TORCHGATE_MODEL_STORE, if that is set."""
    version: str | None = None
    """Release of the archives, such as 2.0; by default the next one that is free."""
    manifest_key_file: Path | None = None
    """File with the key that signs the manifest; its default is the environment's TORCHGATE_MANIFEST_KEY_FILE."""
    handler: Path = Path(__file__).resolve().parent.parent / "handlers" / "image_classifier.py"
    """TorchServe handler that is put into the archives, with the modules that it imports from its own folder."""


@dataclass(frozen=True)
class ProfileConfig:
    """See where the time of a version goes, operator by operator, as its own handler serves it."""

    run: Path | None = None
    """Folder of an exported run; this or --archive."""
    archive: Path | None = None
    """A .mar file."""
    variant: Variant | None = None
    """Of the run; fp32 if not given."""
    batch_sizes: tuple[int, ...] = (1, 8, 32)
    """Images per batch."""
    num_batches: int = 20
    """Batches of each size, after those that warm up."""
    runs: Path = Path("runs")
    """Folder in which the profile gets its own."""

    def __post_init__(self) -> None:
        _at_least("num-batches", self.num_batches, 1)
        if not self.batch_sizes or not all(1 <= size <= MOST_IMAGES for size in self.batch_sizes):
            raise SettingError(f"--batch-sizes is {self.batch_sizes}; allowed are sizes from 1 to {MOST_IMAGES}")


def config_from(document: dict[str, Any]) -> Config:
    """Return the config that a run keeps as JSON."""
    train = {**document["train"], "augment": AugmentConfig(**document["train"]["augment"])}
    return Config(
        preset=document["preset"],
        name=document["name"],
        data=DataConfig(**document["data"]),
        train=TrainConfig(**train),
        export=ExportConfig(**document["export"]),
    )


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise SettingError(f"--{name.replace('_', '-')} is {value}; allowed is {least} or more")
