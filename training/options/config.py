"""Every option of training, declared once: its default, its help, its unit. The command line derives from this."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from training.artifacts import Variant
from training.errors import SettingError
from training.options.limits import at_least, more_than_zero

BuiltIn = Literal["digits", "synthetic"]
BUILT_IN: tuple[BuiltIn, ...] = get_args(BuiltIn)
Broken = Literal["fail", "skip"]
Sampler = Literal["random", "balanced"]
Precision = Literal["fp32", "bf16", "fp16"]
Schedule = Literal["cosine", "exponential", "one-cycle"]
ResNetName = Literal["resnet20", "resnet32", "resnet56", "resnet18", "resnet34", "resnet50"]
Architecture = Literal[ResNetName, "resnet20-early-exit"]
WITH_CONTROL_FLOW: tuple[Architecture, ...] = ("resnet20-early-exit",)  # how far they go depends on the image
Compile = Literal["trace", "script", "mixed"]
PresetName = Literal["digits", "digits-long", "synthetic", "images"]
MOST_IMAGES = 1024  # that a handler takes at once


@dataclass(frozen=True)
class DataConfig:
    """The images to train on, and the shape that they are brought to."""

    data: str
    """digits or synthetic (both are built in), or a folder. Its content tells which kind it is: one folder of images
    per class; MNIST or Fashion-MNIST (train-images-idx3-ubyte and so on, plain or .gz); CIFAR-10 or 100 (data_batch_1
    or train, pickled or .bin); tar shards, as pack writes them."""
    channels: Literal[1, 3]
    """1 reads images as grey, 3 as RGB."""
    height: int
    """Pixels; images are scaled and cropped at the centre to fit, their aspect kept."""
    width: int
    """Pixels."""
    broken: Broken = "fail"
    """Images that cannot be read are all named; fail then stops, skip leaves them out."""

    def __post_init__(self) -> None:
        at_least("height", self.height, 1)
        at_least("width", self.width, 1)


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
    """Mirror about half of the images, left to right."""

    def __post_init__(self) -> None:
        for name in ("rotation_degrees", "shear_degrees", "translation"):
            at_least(name, getattr(self, name), 0)
        if not 0 <= self.scaling < 1:
            raise SettingError(f"--scaling is {self.scaling}; allowed is 0 up to, but not including, 1")
        if self.shear_degrees >= 90:
            raise SettingError(f"--shear-degrees is {self.shear_degrees}; allowed is less than 90")


@dataclass(frozen=True)
class LoaderConfig:
    """How training images come to the model. Prepared arrays are read fastest by the training process itself."""

    sampler: Sampler = "random"
    """random takes each image once an epoch; balanced draws as many, with replacement, all classes equally often."""
    workers: int = 0
    """Processes that read and decode ahead. They help only with tar shards, whose images are still encoded."""
    prefetch: int | None = None
    """Batches that each worker reads ahead; with tar shards, chunks of 32 images. With workers, by default 2."""
    shuffle_buffer: int | None = None
    """With tar shards: images in each worker's buffer, from which it draws the next one; 1,000 if not given."""
    pin_memory: bool = False
    """With --workers and prepared arrays: batches wait in page-locked memory, so that copies to a GPU do not block."""

    def __post_init__(self) -> None:
        at_least("workers", self.workers, 0)
        if self.prefetch is not None:
            at_least("prefetch", self.prefetch, 1)
            if not self.workers:
                raise SettingError("--prefetch goes with --workers; without workers nothing is read ahead")
        if self.pin_memory and not self.workers:
            raise SettingError("--pin-memory goes with --workers; without workers no batch waits to be copied")
        if self.shuffle_buffer is not None:
            at_least("shuffle-buffer", self.shuffle_buffer, 1)

    def check_source(self, *, is_stream: bool) -> None:
        """Raise SettingError for what has no meaning with tar shards, or with prepared arrays."""
        if is_stream and self.sampler == "balanced":
            raise SettingError("--sampler balanced draws images in any order, and tar shards are streamed")
        if is_stream and self.pin_memory:
            raise SettingError("--pin-memory goes with prepared arrays; batches of tar shards are put together later")
        if not is_stream and self.shuffle_buffer is not None:
            raise SettingError("--shuffle-buffer goes with tar shards; prepared arrays are shuffled as a whole")


@dataclass(frozen=True)
class TrainConfig:
    """How the network is trained."""

    architecture: Architecture = field(metadata={"flag": "--model"})
    """resnet20, 32 and 56 are made for small images, resnet18, 34 and 50 for large ones; resnet20-early-exit stops when
    it is sure (small images; --compile script or mixed)."""
    epochs: int
    """Passes over the training images."""
    seed: int = 0
    """Seed of the weights, the order of images and their augmentation; the split of the data does not depend on it."""
    batch_size: int = 64
    """Images per batch."""
    learning_rate: float = 0.1
    """Largest learning rate. The rate first rises to it, then falls as --schedule says."""
    schedule: Schedule = "cosine"
    """How the learning rate falls: along half a cosine, by one factor per epoch, or in one cycle, in which the momentum
    moves the opposite way."""
    gamma: float | None = None
    """With the exponential schedule: its factor per epoch. By default, the learning rate ends at a hundredth of its
    largest value."""
    warmup: float = 0.15
    """Fraction of all steps during which the learning rate rises."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 5e-4
    """On the weights of convolutions and of the linear layer alone."""
    label_smoothing: float = 0.0
    """Part of each label's probability that is spread over all classes."""
    accumulation: int = 1
    """Batches whose gradients are added up for one step."""
    clip_norm: float | None = None
    """Largest 2-norm of all gradients together; a step with a larger one is scaled down to it."""
    ema_decay: float | None = None
    """Validate and keep an exponential moving average of the weights, with this decay per step, such as 0.99."""
    patience: int | None = None
    """Stop after so many epochs in a row that were no better than the best one."""
    precision: Precision = "fp32"
    """bf16 and fp16 compute most of the network in 16 bits; fp16 needs a GPU, and scales its gradients."""
    channels_last: bool = True
    """Whether images and kernels lie with their channels last in memory, which is faster for convolutions."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)

    def __post_init__(self) -> None:
        at_least("epochs", self.epochs, 1)
        at_least("accumulation", self.accumulation, 1)
        if self.patience is not None:
            at_least("patience", self.patience, 1)
        if self.clip_norm is not None:
            more_than_zero("clip-norm", self.clip_norm)
        if not 0 <= self.label_smoothing < 1:
            raise SettingError(f"--label-smoothing is {self.label_smoothing}; allowed is 0 up to, but not including, 1")
        if self.gamma is not None and self.schedule != "exponential":
            raise SettingError(f"--gamma is {self.gamma}, but --schedule is {self.schedule}; it goes with exponential")
        for name in ("gamma", "ema_decay"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                option = name.replace("_", "-")
                raise SettingError(f"--{option} is {value}; allowed is more than 0 and less than 1")
        at_least("batch-size", self.batch_size, 2)
        at_least("seed", self.seed, 0)
        at_least("weight-decay", self.weight_decay, 0)
        more_than_zero("learning-rate", self.learning_rate)
        for name in ("momentum", "warmup"):
            if not 0 < getattr(self, name) < 1:
                raise SettingError(f"--{name} is {getattr(self, name)}; allowed is more than 0 and less than 1")


@dataclass(frozen=True)
class QuantizeConfig:
    """Whether to make int8-qat, too: the int8 variant that needs training."""

    qat: bool = False
    """Also make the variant int8-qat: train the finished weights further, on the same batches, with rounding to int8 in
    every forward pass."""
    qat_epochs: int | None = None
    """With --qat: passes over the training images, by default 3. In the last third, the ranges of int8 and the
    statistics of batch norm stay fixed."""
    qat_learning_rate: float | None = None
    """With --qat: largest learning rate, by default 0.005. The rate rises briefly, then falls along a cosine to 0."""

    def __post_init__(self) -> None:
        for name in ("qat_epochs", "qat_learning_rate"):
            if getattr(self, name) is not None and not self.qat:
                raise SettingError(f"--{name.replace('_', '-')} goes with --qat")
        at_least("qat-epochs", self.num_qat_epochs(), 1)
        more_than_zero("qat-learning-rate", self.top_qat_learning_rate())

    def num_qat_epochs(self) -> int:
        """Return the passes of the training with rounding."""
        return 3 if self.qat_epochs is None else self.qat_epochs

    def top_qat_learning_rate(self) -> float:
        """Return the largest value of its learning rate."""
        return 0.005 if self.qat_learning_rate is None else self.qat_learning_rate


@dataclass(frozen=True)
class ExportConfig:
    """How the graphs are made."""

    compile: Compile = "trace"
    """trace records one run of the model, script compiles its code. mixed traces the parts without loops and branches,
    and scripts the code around them."""
    aoti: bool = False
    """Make one more version, aoti: torch.export's graph as a library of machine code. This needs a C++ compiler here,
    but none where the version is served. The processor there must be of this kind or a better one."""
    onnx: bool = False
    """Also leave the fp32 graph as ONNX in the run, checked with ONNX Runtime (extra onnx)."""


@dataclass(frozen=True)
class Config:
    """All options that decide a run's results. Each run folder keeps them in its config.json."""

    preset: PresetName
    """The defaults of all other options."""
    name: str
    """Name of the model, in the model store and in requests."""
    data: DataConfig
    train: TrainConfig
    quantize: QuantizeConfig = field(default_factory=QuantizeConfig)
    export: ExportConfig = field(default_factory=ExportConfig)


@dataclass(frozen=True)
class ArchiveConfig:
    """Where the archives go. Runs do not keep these options: give them in each call."""

    model_store: Path = Path("model_store")
    """Folder of the archives; its default is the environment's TORCHGATE_MODEL_STORE, if that is set."""
    version: str | None = None
    """Release of the archives, such as 2.0; by default the next one that is free."""
    signing_key_file: Path | None = None
    """Private key that signs the manifest; its default is the environment's TORCHGATE_SIGNING_KEY_FILE."""
    signature_days: float = 365
    """Days until the signature expires. With an expired signature, gateways load nothing."""
    handler: Path = Path(__file__).resolve().parents[2] / "handlers" / "image_classifier.py"
    """TorchServe handler that is put into the archives, with the modules that it imports from its own folder."""
    max_image_pixels: int | None = None
    """Largest image that is decoded when served; 25 million pixels if not given. Images that are costly to decode have
    a lower limit."""
    image_formats: tuple[str, ...] = ()
    """Formats that are decoded when served, such as PNG JPEG; all that the handler knows if not given."""


@dataclass(frozen=True)
class ProfileConfig:
    """See where the time of a version goes, operator by operator, as its own handler serves it."""

    run: Path | None = None
    """Folder of an exported run; this or --archive."""
    archive: Path | None = None
    """A .mar file."""
    variant: Variant | None = None
    """Variant of the run; fp32 if not given."""
    batch_sizes: tuple[int, ...] = (1, 8, 32)
    """Images per batch."""
    num_batches: int = 20
    """Batches of each size, after those that warm up."""
    runs: Path = Path("runs")
    """Folder in which the profile's own folder is made."""

    def __post_init__(self) -> None:
        at_least("num-batches", self.num_batches, 1)
        if not self.batch_sizes or not all(1 <= size <= MOST_IMAGES for size in self.batch_sizes):
            raise SettingError(f"--batch-sizes is {self.batch_sizes}; allowed are sizes from 1 to {MOST_IMAGES}")


def config_from(document: dict[str, Any]) -> Config:
    """Return the config that a run keeps as JSON."""
    return Config(
        preset=document["preset"],
        name=document["name"],
        data=DataConfig(**document["data"]),
        train=train_config_from(document["train"]),
        quantize=QuantizeConfig(**document.get("quantize", {})),  # older runs do not have it
        export=ExportConfig(**document["export"]),
    )


def train_config_from(document: dict[str, Any]) -> TrainConfig:
    """Return the options of training that a run or a checkpoint keeps; older ones lack some, and have the defaults."""
    nested = {"augment": AugmentConfig(**document["augment"]), "loader": LoaderConfig(**document.get("loader", {}))}
    return TrainConfig(**{**document, **nested})
