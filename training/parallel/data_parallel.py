"""One process, several GPUs: torch.nn.DataParallel copies the network to each for every batch.

DistributedDataParallel is faster: it copies once and is not held up by Python's lock. This one needs no processes.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from training.errors import SettingError
from training.parallel import replica
from training.parallel.strategy import BuildOptimizer, Pass, Sums
from training.parallel.world import World


class DataParallel:
    """All GPUs of this machine, from one process; batch norm sees a GPU's images, the first one's statistics stay."""

    num_shards = 1
    shard = 0

    def __init__(self, device: torch.device) -> None:
        num_gpus = torch.cuda.device_count()
        if device.type != "cuda" or num_gpus < 2:
            raise SettingError(
                f"--strategy data-parallel splits a batch over GPUs: it needs --device cuda and at least two of them; "
                f"the device is {device.type}, torch sees {num_gpus} GPUs. On this machine ddp spreads the same work"
            )
        self.world = World(0, 1, torch.device("cuda", 0))

    def place(self, network: nn.Module) -> nn.Module:
        """Return the network on the first GPU, which lends it to the others."""
        return nn.DataParallel(network.to(self.world.device))

    def make_optimizer(self, network: nn.Module, build: BuildOptimizer) -> Optimizer:
        """Return the optimizer of the first GPU's parameters: there the gradients arrive."""
        return build(network)

    def forward_backward(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Add the gradients of the batch; they are summed, not averaged, over GPUs."""
        return replica.forward_backward(network, images, labels, how, num_shards=1)

    def clip_gradients(self, network: nn.Module, optimizer: Optimizer, max_norm: float | None) -> Tensor:
        """Return the norm, and scale by it where asked."""
        return replica.clip_gradients(network, max_norm)

    def evaluate(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take a batch through the network."""
        return replica.evaluate(network, images, labels, how)

    def state_dict(self, network: nn.Module) -> dict[str, Tensor]:
        """Return copies on the CPU."""
        return replica.state_dict(inside(network))

    def load_state_dict(self, network: nn.Module, state: dict[str, Tensor]) -> None:
        """Load it."""
        inside(network).load_state_dict(state)

    def optimizer_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return copies on the CPU, by plain names."""
        return replica.optimizer_state(inside(network), optimizer)

    def load_optimizer_state(self, network: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load it."""
        replica.load_optimizer_state(inside(network), optimizer, state)


def inside(network: nn.Module) -> nn.Module:
    """Return the network that DataParallel wraps."""
    assert isinstance(network, nn.DataParallel), "it was placed here"
    wrapped: nn.Module = network.module
    return wrapped
