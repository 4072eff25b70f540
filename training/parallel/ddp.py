"""A replica of the network in each process, each with a shard of every batch: DistributedDataParallel."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from training.parallel import replica
from training.parallel.batch_norm import synchronise
from training.parallel.strategy import BuildOptimizer, Pass, Sums
from training.parallel.world import World


class Replicas:
    """The whole network in each process; gradients are averaged while they are computed."""

    def __init__(self, world: World, *, local_batch_norm: bool) -> None:
        self.world = world
        self.local_batch_norm = local_batch_norm
        self.shard = world.rank
        self.num_shards = world.size

    def place(self, network: nn.Module) -> nn.Module:
        """Return this process's replica."""
        network = network.to(self.world.device)
        if not self.local_batch_norm:
            network = synchronise(network, self.world.device, None)
        # Local statistics differ from process to process: those of the main one are sent before each pass.
        return wrapped(network, self.world.device, forward_sync_buffers=self.local_batch_norm)

    def make_optimizer(self, network: nn.Module, build: BuildOptimizer) -> Optimizer:
        """Return the optimizer of the replica; with equal gradients, all replicas stay equal."""
        return build(network)

    def forward_backward(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Add the gradients of the shard, and average them over processes after the step's last batch."""
        assert isinstance(network, DistributedDataParallel), "it was placed here"
        with nullcontext() if how.last else network.no_sync():
            return replica.forward_backward(network, images, labels, how, self.num_shards)

    def clip_gradients(self, network: nn.Module, optimizer: Optimizer, max_norm: float | None) -> Tensor:
        """Return the norm, and scale by it where asked: every process has all gradients."""
        return replica.clip_gradients(network, max_norm)

    def evaluate(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take a shard through the replica."""
        return replica.evaluate(network, images, labels, how)

    def state_dict(self, network: nn.Module) -> dict[str, Tensor]:
        """Return copies on the CPU."""
        return replica.state_dict(inside(network)) if self.world.is_main else {}

    def load_state_dict(self, network: nn.Module, state: dict[str, Tensor]) -> None:
        """Load it into the replica."""
        inside(network).load_state_dict(state)

    def optimizer_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return copies on the CPU, by plain names."""
        return replica.optimizer_state(inside(network), optimizer) if self.world.is_main else {}

    def load_optimizer_state(self, network: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load it."""
        replica.load_optimizer_state(inside(network), optimizer, state)


def wrapped(network: nn.Module, device: torch.device, **options: Any) -> DistributedDataParallel:
    """Return the network wrapped for its device."""
    devices = [device] if device.type == "cuda" else None
    return DistributedDataParallel(network, device_ids=devices, gradient_as_bucket_view=True, **options)


def inside(network: nn.Module) -> nn.Module:
    """Return the network that DistributedDataParallel wraps."""
    assert isinstance(network, DistributedDataParallel), "it was placed here"
    module: nn.Module = network.module
    return module
