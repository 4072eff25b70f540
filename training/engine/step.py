"""One step of the optimizer: gradients of one or several batches, and what is done before they are used."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from training.data.batches import Batch
from training.engine.averaging import Average
from training.engine.non_finite import detecting_anomalies, first_of, watching
from training.errors import NonFiniteLossError
from training.models.serving_graph import Normalize
from training.options.config import Precision, TrainConfig
from training.parallel.strategy import LossFunction, Pass, Strategy

LOWEST_SCALE = 2.0**-10  # of float16's gradients: below it, they are not too large for the format but no numbers


@dataclass(frozen=True)
class StepResult:
    """Sums over the images of a step, over all shards."""

    loss: float
    num_correct: int
    num_images: int
    stop: bool
    """Whether any process was asked to stop."""


def cross_entropy(label_smoothing: float = 0.0) -> LossFunction:
    """Return the sum of cross entropies; the smoothing is that of Szegedy et al. 2015 (arXiv 1512.00567), section 7."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=label_smoothing)

    return loss


@dataclass
class Inputs:
    """How images and labels reach the network of a strategy."""

    strategy: Strategy
    normalize: Normalize
    channels_last: bool

    def pixels(self, images: Tensor) -> Tensor:
        """Images 0 to 255 [N, C, H, W] -> normalised float32 on the device, in the layout of the network."""
        pixels: Tensor = self.normalize(images.to(self.strategy.world.device, non_blocking=True))
        return pixels.contiguous(memory_format=torch.channels_last if self.channels_last else torch.contiguous_format)

    def labels(self, labels: Tensor) -> Tensor:
        """Labels on the device."""
        return labels.to(self.strategy.world.device, non_blocking=True)


@dataclass
class Stepper:
    """All that a step changes, and how it is taken."""

    strategy: Strategy
    network: nn.Module
    inputs: Inputs
    optimizer: Optimizer
    schedule: LRScheduler
    scaler: GradScaler
    """Float16 alone needs it; a disabled one changes nothing."""
    average: Average
    autocast: Callable[[], AbstractContextManager[object]]
    config: TrainConfig
    detect_anomaly: bool = False
    option_prefix: str = ""
    """Of the options that messages name: qat- in quantization-aware training."""

    def step(self, batches: Sequence[Batch], place: str, stop_asked: Callable[[], bool]) -> StepResult:
        """Take one step with the batches' gradients added up.

        Raises NonFiniteLossError, with the place and the first bad module, if the loss or the gradients are not finite;
        nothing was changed then but the statistics of batch norm.
        """
        num_images = sum(batch.num_images for batch in batches)
        with self._watched(place):
            sums = self._gradients(batches, num_images)
        # One reduction for all: a stop is the same step for every process.
        loss, num_correct, num_stops = self.strategy.world.sum(
            torch.cat([sums, sums.new_tensor([stop_asked()])])
        ).tolist()
        if not math.isfinite(loss):
            self._refuse(batches, num_images, f"the loss became {loss / num_images} in {place}")
        self.scaler.unscale_(self.optimizer)
        norm = float(self.strategy.clip_gradients(self.network, self.optimizer, self.config.clip_norm))
        if not math.isfinite(norm) and not self._may_overflow():
            self._refuse(batches, num_images, f"the norm of the gradients became {norm} in {place}")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if math.isfinite(norm):
            self.schedule.step()
            self.average.update(self.network)
        return StepResult(loss, int(num_correct), num_images, num_stops > 0)

    def _gradients(self, batches: Sequence[Batch], num_images: int) -> Tensor:
        """Return the sum of the losses and the number of right answers of this process, float64 [2]."""
        self.optimizer.zero_grad()
        weight = self.scaler.scale(torch.tensor(1 / num_images, device=self.strategy.world.device))
        loss_function = cross_entropy(self.config.label_smoothing)
        total = torch.zeros(2, dtype=torch.float64, device=self.strategy.world.device)
        for index, batch in enumerate(batches, start=1):
            how = Pass(loss_function, weight, self.autocast, last=index == len(batches))
            pixels, labels = self.inputs.pixels(batch.images), self.inputs.labels(batch.labels)
            total += torch.stack(self.strategy.forward_backward(self.network, pixels, labels, how))
        return total

    def _may_overflow(self) -> bool:
        """Tell whether gradients may be too large for float16: the scaler leaves such a step out and scales by less."""
        return self.scaler.is_enabled() and self.scaler.get_scale() >= LOWEST_SCALE

    def _watched(self, place: str) -> AbstractContextManager[None]:
        watch = self.detect_anomaly and not self._may_overflow()
        return detecting_anomalies(self.network, place) if watch else nullcontext()

    def _refuse(self, batches: Sequence[Batch], num_images: int, what: str) -> None:
        """Compute the step again with hooks, which every step would pay for, and raise."""
        # Ranges of activations that are not finite stop a fake-quantized network on its way.
        with torch.compiler.set_stance("force_eager"), watching(self.network) as findings, suppress(RuntimeError):
            self._gradients(batches, num_images)
        first = first_of(self.strategy.world.gather(findings))
        raise NonFiniteLossError(
            f"{what}: the first that is not finite is {first}; "
            f"a smaller --{self.option_prefix}learning-rate than {self.config.learning_rate} may help"
        )


def autocast(precision: Precision, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """Return what to put around forward passes."""
    if precision == "fp32":
        return nullcontext
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    return lambda: torch.autocast(device.type, dtype=dtype)
