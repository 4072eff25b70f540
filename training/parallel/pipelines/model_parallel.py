"""The network split over processes, batches going through in micro-batches: for what is too large for one device."""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from training.models.resnet import ResNet
from training.parallel import replica
from training.parallel.pipelines import stages
from training.parallel.pipelines.micro_batches import Pipeline
from training.parallel.strategy import BuildOptimizer, Pass, Sums
from training.parallel.world import World, gathered


class PipelinedStages:
    """A stage of the network in each process; every process is given every image, and only the first uses them."""

    num_shards = 1
    shard = 0

    def __init__(self, world: World, *, num_micro_batches: int) -> None:
        self.world = world
        self.num_micro_batches = num_micro_batches
        self.pipeline: Pipeline | None = None

    def place(self, network: nn.Module) -> nn.Module:
        """Return this process's stage."""
        assert isinstance(network, ResNet), "build_model makes it one"
        group = dist.group.WORLD
        assert group is not None, "the processes have joined"
        self.pipeline = Pipeline(
            network,
            index=self.world.rank,
            group=group,
            num_micro_batches=self.num_micro_batches,
            device=self.world.device,
        )
        return self.pipeline.module

    def make_optimizer(self, network: nn.Module, build: BuildOptimizer) -> Optimizer:
        """Return the optimizer of the stage."""
        return build(network)

    def forward_backward(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take the batch forward and backward through all stages."""
        assert self.pipeline is not None, "the network was placed"
        return self.pipeline.forward_backward(images, labels, how, factor=1.0)

    def clip_gradients(self, network: nn.Module, optimizer: Optimizer, max_norm: float | None) -> Tensor:
        """Return the norm over all stages, and scale by it where asked."""
        return clip_stages(network, max_norm, dist.group.WORLD)

    def evaluate(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take a batch through all stages."""
        assert self.pipeline is not None, "the network was placed"
        return self.pipeline.evaluate(images, labels, how)

    def state_dict(self, network: nn.Module) -> dict[str, Tensor]:
        """Return all stages' states, on the CPU, to the main process."""
        return stages.merged(gathered(replica.state_dict(network), None))

    def load_state_dict(self, network: nn.Module, state: dict[str, Tensor]) -> None:
        """Load the stage's part of it."""
        stages.load_stage(network, state)

    def optimizer_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of all stages' optimizers, on the CPU, by plain names."""
        return stages.merged_optimizers(gathered(replica.optimizer_state(network, optimizer), None))

    def load_optimizer_state(self, network: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load the stage's part of it."""
        stages.load_stage_optimizer(network, optimizer, state)


def clip_stages(network: nn.Module, max_norm: float | None, group: dist.ProcessGroup | None) -> Tensor:
    """Return the 2-norm of the gradients of all stages of a group; scale this one's down where it is larger."""
    own = nn.utils.get_total_norm([each.grad for each in network.parameters() if each.grad is not None])
    squares = own.square()
    dist.all_reduce(squares, group=group)
    norm = squares.sqrt()
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(network.parameters(), max_norm, norm)
    return norm
