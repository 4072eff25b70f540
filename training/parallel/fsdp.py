"""A shard of every weight in each process: FSDP2 gathers a block's weights for its pass and drops them after it.

Weights, gradients and the optimizer's state take a process's share of the memory that they take in one; see Zhao et al.
2023 (arXiv 2304.11277).
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from training.errors import SettingError
from training.models.resnet import BasicBlock, Bottleneck
from training.parallel import replica
from training.parallel.batch_norm import synchronise
from training.parallel.strategy import BuildOptimizer, Pass, Sums
from training.parallel.world import World

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Sharded:
    """Every residual block is a unit that is gathered and dropped as one; the stem and the last layer are another."""

    def __init__(self, world: World, *, cpu_offload: bool) -> None:
        if cpu_offload and world.device.type != "cuda":
            raise SettingError(
                "--cpu-offload moves what is not in use from GPUs to the CPU: it needs --device cuda; "
                "on the CPU it is there already"
            )
        self.world = world
        self.cpu_offload = cpu_offload
        self.shard = world.rank
        self.num_shards = world.size

    def place(self, network: nn.Module) -> nn.Module:
        """Return the network with this process's shards."""
        # FSDP shards plain tensors alone; the images' layout decides the convolutions' own.
        network = network.to(self.world.device).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        network = synchronise(network, self.world.device, None)
        mesh = init_device_mesh(self.world.device.type, (self.world.size,))
        policy = CPUOffloadPolicy() if self.cpu_offload else OffloadPolicy()
        for module in list(network.modules()):
            if isinstance(module, BasicBlock | Bottleneck):
                fully_shard(module, mesh=mesh, offload_policy=policy)
        fully_shard(network, mesh=mesh, offload_policy=policy)
        return network

    def make_optimizer(self, network: nn.Module, build: BuildOptimizer) -> Optimizer:
        """Return the optimizer of the shards."""
        return build(network)

    def forward_backward(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Add the gradients of the shard of the batch; they are averaged and sharded after the step's last batch."""
        assert isinstance(network, FSDPModule), "it was placed here"
        network.set_requires_gradient_sync(how.last)
        return replica.forward_backward(network, images, labels, how, self.num_shards)

    def clip_gradients(self, network: nn.Module, optimizer: Optimizer, max_norm: float | None) -> Tensor:
        """Return the norm over all shards, and scale by it where asked."""
        norm = replica.clip_gradients(network, max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def evaluate(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take a shard of a batch, which may be empty, through the network: all processes gather the weights."""
        return replica.evaluate(network, images, labels, how)

    def state_dict(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the whole state on the CPU, put together from the shards."""
        state: dict[str, Any] = get_model_state_dict(network, options=WHOLE)
        return {name: value.clone() for name, value in state.items()}

    def load_state_dict(self, network: nn.Module, state: dict[str, Tensor]) -> None:
        """Load this process's shards of it."""
        # Torch puts the shards into what it is given.
        set_model_state_dict(network, dict(state), options=StateDictOptions(full_state_dict=True))

    def optimizer_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the whole state on the CPU, by plain names."""
        return get_optimizer_state_dict(network, optimizer, options=WHOLE)

    def load_optimizer_state(self, network: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load this process's shards of it."""
        own: dict[str, Any] = {
            # Copies: what is loaded may be a part of what is given, and training changes it in place.
            "state": deepcopy(state["state"]),
            "param_groups": [dict(group) for group in state["param_groups"]],
        }
        set_optimizer_state_dict(network, optimizer, own, options=StateDictOptions(full_state_dict=True))
