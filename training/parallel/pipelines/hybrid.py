"""Replicas of a network that is split over processes: DistributedDataParallel around each stage of a pipeline."""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from training.errors import SettingError
from training.models.resnet import ResNet
from training.parallel import ddp, replica
from training.parallel.batch_norm import synchronise
from training.parallel.pipelines import stages
from training.parallel.pipelines.micro_batches import Pipeline
from training.parallel.pipelines.model_parallel import clip_stages
from training.parallel.strategy import BuildOptimizer, Pass, Sums
from training.parallel.world import World, gathered


class ReplicatedStages:
    """Processes in rows and columns: a row is a replica, a shard of each batch goes through its stages; a column holds
    the same stage of all replicas, and averages its gradients.
    """

    def __init__(self, world: World, *, num_stages: int, num_micro_batches: int) -> None:
        if world.size % num_stages or world.size < 2 * num_stages:
            raise SettingError(
                f"hybrid has {world.size} processes for {num_stages} stages; allowed is a multiple, 2 or more replicas"
            )
        mesh = init_device_mesh(
            world.device.type, (world.size // num_stages, num_stages), mesh_dim_names=("replica", "stage")
        )
        self.world = world
        self.num_micro_batches = num_micro_batches
        self.num_shards = world.size // num_stages
        self.shard: int = mesh.get_local_rank("replica")
        self.stage: int = mesh.get_local_rank("stage")
        self.row: dist.ProcessGroup = mesh.get_group("stage")
        self.column: dist.ProcessGroup = mesh.get_group("replica")
        self.pipeline: Pipeline | None = None

    def place(self, network: nn.Module) -> nn.Module:
        """Return this process's stage of its replica."""
        assert isinstance(network, ResNet), "build_model makes it one"
        self.pipeline = Pipeline(
            network,
            index=self.stage,
            group=self.row,
            num_micro_batches=self.num_micro_batches,
            device=self.world.device,
        )
        self.pipeline.wrap(self._replicated)
        return self.pipeline.module

    def make_optimizer(self, network: nn.Module, build: BuildOptimizer) -> Optimizer:
        """Return the optimizer of the stage."""
        return build(network)

    def forward_backward(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take the shard forward and backward through the replica; gradients are averaged over columns."""
        assert self.pipeline is not None, "the network was placed"
        return self.pipeline.forward_backward(images, labels, how, factor=float(self.num_shards))

    def clip_gradients(self, network: nn.Module, optimizer: Optimizer, max_norm: float | None) -> Tensor:
        """Return the norm over all stages, and scale by it where asked."""
        return clip_stages(network, max_norm, self.row)

    def evaluate(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take a shard of a batch, which may be empty, through the replica."""
        assert self.pipeline is not None, "the network was placed"
        return self.pipeline.evaluate(images, labels, how)

    def state_dict(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the states of the replica's stages, on the CPU."""
        return stages.merged(gathered(replica.state_dict(ddp.inside(network)), self.row))

    def load_state_dict(self, network: nn.Module, state: dict[str, Tensor]) -> None:
        """Load the stage's part of it."""
        stages.load_stage(ddp.inside(network), state)

    def optimizer_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of the replica's optimizers, on the CPU, by plain names."""
        own = replica.optimizer_state(ddp.inside(network), optimizer)
        return stages.merged_optimizers(gathered(own, self.row))

    def load_optimizer_state(self, network: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load the stage's part of it."""
        stages.load_stage_optimizer(ddp.inside(network), optimizer, state)

    def _replicated(self, stage: nn.Module) -> nn.Module:
        synchronised = synchronise(stage, self.world.device, self.column)
        return ddp.wrapped(synchronised, self.world.device, process_group=self.column, forward_sync_buffers=False)
