"""The options of the verbs pack and bench-loader; a docstring is what `--help` says."""

from dataclasses import dataclass, field
from pathlib import Path

from training.errors import SettingError
from training.options.config import Architecture, Broken, LoaderConfig


@dataclass(frozen=True)
class PackOptions:
    """Pack the images of each split into tar shards (KEY.png, KEY.cls). Then `--data SHARDS` streams them."""

    data: str
    """digits, synthetic, or a folder of images in any layout that prepare knows, except shards."""
    shards: Path
    """Folder that gets the shards; it must not be there yet."""
    images_per_shard: int = 1000
    """The last shard of a split may have fewer."""
    broken: Broken = "fail"
    """Images that cannot be read are all named; fail then stops, skip leaves them out."""

    def __post_init__(self) -> None:
        if self.images_per_shard < 1:
            raise SettingError(f"--images-per-shard is {self.images_per_shard}; allowed is 1 or more")


@dataclass(frozen=True)
class BenchLoaderOptions:
    """Say whether the input pipeline or the model limits a prepared run's training. Defaults are the run's own."""

    run: Path
    """Folder of the run."""
    architecture: Architecture = field(metadata={"flag": "--model"})
    """resnet20, 32 and 56 are made for small images, resnet18, 34 and 50 for large ones."""
    batch_size: int
    """Images per step."""
    loader: LoaderConfig
    device: str = "cpu"
    """cpu, cuda, or cuda:N for one GPU of several. Precision and memory layout are those of the run."""
    seconds: float = 5.0
    """Duration of each of the three measurements, after its warm-up."""
    report: Path | None = None
    """File that gets the figures as JSON."""

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise SettingError(f"--batch-size is {self.batch_size}; allowed is 2 or more")
        if not 0 < self.seconds <= 600:
            raise SettingError(f"--seconds is {self.seconds}; allowed is more than 0 up to 600")
