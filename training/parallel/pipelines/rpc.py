"""The network split over processes that are called by name: torch.distributed.rpc, with its autograd and optimizer.

The main process drives: it sends micro-batches to the stages, which are objects in other processes, asks distributed
autograd for the gradients of all of them, and their optimizers for a step. model-parallel does the same work without
a driver; here, what is remote need not be alike.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from torch.distributed import rpc
from torch.optim import Optimizer

from training.models.resnet import ResNet
from training.parallel import replica
from training.parallel.pipelines import stages
from training.parallel.pipelines.remote_stage import RemoteStage, RemoteStep, Settings
from training.parallel.strategy import BuildOptimizer, Pass, Sums
from training.parallel.world import TIMEOUT, World, gathered


class RemoteStages:
    """A stage of the network in each process; the first one calls them all, the others answer."""

    num_shards = 1
    shard = 0

    def __init__(self, world: World, *, num_micro_batches: int) -> None:
        self.world = world
        self.num_micro_batches = num_micro_batches
        self.stages: list[rpc.RRef[RemoteStage]] = []
        self.optimizer: RemoteStep | None = None
        self.losses: list[Tensor] = []  # of the step's batches so far

    def place(self, network: nn.Module) -> nn.Module:
        """Return this process's stage."""
        assert isinstance(network, ResNet), "build_model makes it one"
        stage = stages.cut(network, self.world.size)[self.world.rank].to(self.world.device)
        RemoteStage.here = RemoteStage(stage, self.world.device)
        dist.barrier()
        if self.world.is_main:
            self.stages = [rpc.remote(name_of(rank), RemoteStage.get) for rank in range(self.world.size)]
        return stage

    def make_optimizer(self, network: nn.Module, build: BuildOptimizer) -> Optimizer:
        """Return this process's part of the distributed optimizer: its schedule is this process's own."""
        RemoteStage.get().optimizer = build(network)
        dist.barrier()
        parameters = [each for stage in self.stages for each in stage.rpc_sync().parameters()]
        self.optimizer = RemoteStep(RemoteStage.get(), parameters)
        return self.optimizer

    def forward_backward(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take the batch forward through all stages; only the main process does anything.

        With the last batch of a step, all of them go backward: distributed autograd takes one backward pass in a
        context, and waits for ever in a second one for what the first has done. So accumulation saves no memory here.
        """
        assert self.optimizer is not None, "the network has its optimizer"
        with self._all_here():
            if not self.world.is_main:
                return self._nothing()
            logits = self._forward(images, num_parts=stages.num_parts(len(images), self.num_micro_batches), how=how)
            with how.autocast():
                loss = how.loss_function(logits, labels)
            self.losses.append(loss * how.weight)
            if how.last:
                dist_autograd.backward(self.optimizer.context(), self.losses)  # type: ignore[attr-defined]
                self.losses = []
            return Sums(loss.detach(), (logits.argmax(dim=1) == labels).sum())

    def clip_gradients(self, network: nn.Module, optimizer: Optimizer, max_norm: float | None) -> Tensor:
        """Return the norm over all stages, and scale by it where asked."""
        assert self.optimizer is not None, "the network has its optimizer"
        squares = torch.zeros((), dtype=torch.float64, device=self.world.device)
        if self.world.is_main:
            context = self.optimizer.context()
            squares += sum(stage.rpc_sync().squared_norm(context) for stage in self.stages)
            norm = float(squares.sqrt())
            # As torch.nn.utils.clip_grad_norm_ has it, the small number included.
            factor = 1.0 if max_norm is None else min(1.0, max_norm / (norm + 1e-6))
            if factor < 1:
                for stage in self.stages:
                    stage.rpc_sync().scale_gradients(context, factor)
        return self.world.sum(squares).sqrt()

    def evaluate(self, network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take a batch through all stages."""
        with self._all_here(), torch.no_grad():
            if not self.world.is_main:
                return self._nothing()
            logits = self._forward(images, num_parts=1, how=how)
            with how.autocast():
                loss = how.loss_function(logits, labels)
            return Sums(loss, (logits.argmax(dim=1) == labels).sum())

    def state_dict(self, network: nn.Module) -> dict[str, Tensor]:
        """Return all stages' states, on the CPU, to the main process."""
        return stages.merged(gathered(replica.state_dict(network), None))

    def load_state_dict(self, network: nn.Module, state: dict[str, Tensor]) -> None:
        """Load the stage's part of it."""
        stages.load_stage(network, state)

    def optimizer_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state of all stages' optimizers, on the CPU, by plain names."""
        own = replica.optimizer_state(network, RemoteStage.get().own_optimizer())
        return stages.merged_optimizers(gathered(own, None))

    def load_optimizer_state(self, network: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load the stage's part of it."""
        own = RemoteStage.get().own_optimizer()
        stages.load_stage_optimizer(network, own, state)
        # Loading makes new parameter groups; the schedule sets the rate of those that it finds here.
        optimizer.param_groups, optimizer.state = own.param_groups, own.state

    def _forward(self, images: Tensor, *, num_parts: int, how: Pass) -> Tensor:
        """Return the logits: each stage has a micro-batch while the one behind it has the one before."""
        settings = Settings.inside(how.autocast, self.world.device, torch.is_grad_enabled())
        for stage in self.stages:
            stage.rpc_sync().begin_batch()
        waiting = []
        for number, part in enumerate(images.chunk(num_parts)):
            answer = rpc.RRef(part)
            for stage in self.stages[:-1]:
                answer = stage.remote().forward_from(answer, number, settings)
            waiting.append(self.stages[-1].rpc_async().forward_from(answer, number, settings))
        return torch.cat([each.wait() for each in waiting])

    def _nothing(self) -> Sums:
        return Sums(
            torch.zeros((), device=self.world.device), torch.zeros((), dtype=torch.int64, device=self.world.device)
        )

    @contextmanager
    def _all_here(self) -> Iterator[None]:
        """Stages are called while their processes wait: after they have changed to this mode, before they leave it."""
        dist.barrier()
        yield
        dist.barrier()


def name_of(rank: int) -> str:
    """Return the name that a process answers to."""
    return f"stage-{rank}"


@contextmanager
def serving(world: World) -> Iterator[None]:
    """Answer calls inside; at the end, wait until all processes have asked what they wanted."""
    # It says of each optimizer that it is not TorchScript; one that is could not have its learning rate changed.
    logging.getLogger("torch.distributed.optim.optimizer").setLevel(logging.ERROR)
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=TIMEOUT.total_seconds())
    if world.device.type == "cuda":
        options.set_devices([world.device])
        for rank, device in enumerate(world.gather(world.device)):
            options.set_device_map(name_of(rank), {world.device: device})
    with warnings.catch_warnings():
        # It makes a process group the old way.
        warnings.filterwarnings("ignore", "You are using a Backend", UserWarning)
        rpc.init_rpc(  # type: ignore[no-untyped-call]
            name_of(world.rank), rank=world.rank, world_size=world.size, rpc_backend_options=options
        )
    graceful = False
    try:
        yield
        graceful = True
    finally:
        # After an error, others may never come to say goodbye.
        if RemoteStage.here is not None:
            RemoteStage.here.contexts.close()
        RemoteStage.here = None
        rpc.shutdown(graceful=graceful)
