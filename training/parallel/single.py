"""One process, one device: everything is here."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from training.parallel import replica
from training.parallel.strategy import BuildOptimizer, Pass, Sums
from training.parallel.world import World


class SingleProcess:
    """The strategy without communication."""

    num_shards = 1
    shard = 0

    def __init__(self, device: torch.device) -> None:
        self.world = World(0, 1, device)

    def place(self, network: nn.Module) -> nn.Module:
        """Return the network itself, on the device."""
        return network.to(self.world.device)

    def make_optimizer(self, network: nn.Module, build: BuildOptimizer) -> Optimizer:
        """Return the optimizer of all parameters."""
        return build(network)

    def forward_backward(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Add the gradients of the batch."""
        return replica.forward_backward(network, images, labels, how, num_shards=1)

    def clip_gradients(self, network: nn.Module, optimizer: Optimizer, max_norm: float | None) -> Tensor:
        """Return the norm, and scale by it where asked."""
        return replica.clip_gradients(network, max_norm)

    def evaluate(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take a batch through the network."""
        return replica.evaluate(network, images, labels, how)

    def state_dict(self, network: nn.Module) -> dict[str, Tensor]:
        """Return copies on the CPU."""
        return replica.state_dict(network)

    def load_state_dict(self, network: nn.Module, state: dict[str, Tensor]) -> None:
        """Load it."""
        network.load_state_dict(state)

    def optimizer_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return copies on the CPU, by the names of the parameters."""
        return replica.optimizer_state(network, optimizer)

    def load_optimizer_state(self, network: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load it."""
        replica.load_optimizer_state(network, optimizer, state)
