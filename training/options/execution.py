"""Where and how training runs: what may change from call to call, also when a run is resumed."""

from dataclasses import dataclass

import torch

from training.errors import SettingError
from training.options.config import Precision, TrainConfig


@dataclass(frozen=True)
class ExecutionOptions:
    """How one call of training runs. Results should not depend on it, except that other kernels round differently."""

    device: str = "cpu"
    """cpu, cuda, or cuda:N for one GPU of several."""
    torch_compile: bool = False
    """Compile the network with torch.compile before training; needs a C++ compiler, on a GPU also Triton."""
    detect_anomaly: bool = False
    """Check every operator of every step for NaN, and name the line of code: slow, to find bugs. With fp16, the check
    begins when the scale of gradients is so small that an overflow cannot be the cause."""
    profile_steps: int = 0
    """Profile so many steps, from the fourth on: leaves a trace and a table of operators in the run."""
    checkpoint_steps: int | None = None
    """Also leave a checkpoint after every so many steps; there is always one after each epoch."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints stay."""

    def __post_init__(self) -> None:
        limits = (("keep_checkpoints", 1), ("profile_steps", 0), ("checkpoint_steps", 1))
        for name, least in limits:
            value = getattr(self, name)
            if value is not None and value < least:
                raise SettingError(f"--{name.replace('_', '-')} is {value}; allowed is {least} or more")
        if self.detect_anomaly and self.torch_compile:
            raise SettingError("--detect-anomaly names lines of code, and --torch-compile leaves none; allowed is one")
        self.torch_device()

    def torch_device(self) -> torch.device:
        """Return the device; raises SettingError where there is none of that name."""
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise SettingError(f"--device is {self.device!r}; allowed is cpu, cuda or cuda:N") from error
        if device.type not in ("cpu", "cuda"):
            raise SettingError(f"--device is {self.device!r}; allowed is cpu, cuda or cuda:N")
        num_gpus = torch.cuda.device_count()
        if device.type == "cuda" and (device.index or 0) >= num_gpus:
            raise SettingError(f"--device is {self.device!r}, but torch sees {num_gpus} GPUs; cpu is always there")
        return device


def check_train(config: TrainConfig, device: torch.device, *, is_stream: bool) -> None:
    """Raise SettingError for what cannot be trained with on the device, or with images from there."""
    check_precision(config.precision, device)
    config.loader.check_source(is_stream=is_stream)
    check_pinning(device, pin_memory=config.loader.pin_memory)


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raise SettingError where the device does not compute in the precision."""
    if precision == "fp16" and device.type != "cuda":
        raise SettingError("--precision is fp16, which needs a GPU (--device cuda); on the CPU allowed is fp32 or bf16")
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise SettingError("--precision is bf16, which this GPU does not have; allowed is fp32 or fp16")


def check_pinning(device: torch.device, *, pin_memory: bool) -> None:
    """Raise SettingError for page-locked memory where nothing is copied from it."""
    if pin_memory and device.type != "cuda":
        raise SettingError(f"--pin-memory speeds up copies to a GPU; this training is on the {device.type}")
