"""The seam between the training loop and how its work is spread over devices and processes."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from training.parallel.world import World

LossFunction = Callable[[Tensor, Tensor], Tensor]
"""Logits [N, num_classes] and labels int64 [N] -> the sum, a float32 scalar, of the losses of the images."""

BuildOptimizer = Callable[[nn.Module], Optimizer]
"""The parameters that this process holds -> their optimizer."""


@dataclass(frozen=True)
class Pass:
    """How one batch goes forward and backward.

    The gradient of a step is that of `weight` times the sum of the losses over all images of all its batches and
    shards: a strategy that averages gradients over shards multiplies by their number.
    """

    loss_function: LossFunction
    weight: Tensor
    """A scalar on the strategy's device: one over the images of the whole step, times the scale of float16."""
    autocast: Callable[[], AbstractContextManager[object]]
    """Around the forward pass and the loss, never around the backward pass."""
    last: bool = True
    """Whether the step's gradients are complete after this batch; before that, shards need not exchange theirs."""


class Sums(NamedTuple):
    """Over the images of this process; zeros where another process computes the loss of the same images."""

    loss: Tensor
    """Float scalar, not weighted."""
    num_correct: Tensor
    """Int64 scalar."""


class Strategy(Protocol):
    """One process's part of the work. All methods but the properties are called by all processes, in the same order."""

    @property
    def world(self) -> World:
        """All processes, which of them this one is, and where it wants its images and labels."""

    @property
    def num_shards(self) -> int:
        """How many parts each batch is split into; processes that share one replica of the network take the same."""

    @property
    def shard(self) -> int:
        """The part that this process takes."""

    def place(self, network: nn.Module) -> nn.Module:
        """Return what this process holds of the network, on its device, ready to train.

        The network comes on the CPU, with the same weights in every process.
        """

    def make_optimizer(self, network: nn.Module, build: BuildOptimizer) -> Optimizer:
        """Return the optimizer of the placed network."""

    def forward_backward(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Add the gradients of this shard of a batch, normalised float [N, C, H, W] and int64 [N]."""

    def clip_gradients(self, network: nn.Module, optimizer: Optimizer, max_norm: float | None) -> Tensor:
        """Return the 2-norm of all gradients of the whole network; scale them down to `max_norm` if it is larger."""

    def evaluate(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take a shard of a batch, which may be empty, through the network, in eval mode, without gradients."""

    def state_dict(self, network: nn.Module) -> dict[str, Tensor]:
        """Return copies of the whole network's state on the CPU, under the plain names of `build_model`'s network.

        Only the main process needs to get it; others may get an empty dict.
        """

    def load_state_dict(self, network: nn.Module, state: dict[str, Tensor]) -> None:
        """Load what `state_dict` returned, in whatever strategy; all processes pass the same."""

    def optimizer_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the optimizer's whole state on the CPU, by the plain names of the parameters; see state_dict."""

    def load_optimizer_state(self, network: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load what `optimizer_state` returned, in whatever strategy; all processes pass the same."""
