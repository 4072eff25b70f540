"""What the processes of the rpc strategy do for the one that drives: passes, norms, steps of their own stage."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar, NamedTuple, Optional

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer
from torch.optim import Optimizer

from training.parallel.pipelines.stages import Stage
from training.parallel.world import TIMEOUT


class Settings(NamedTuple):
    """What a thread of the driver has set, and a thread in another process has to."""

    autocast: bool
    dtype: torch.dtype
    gradients: bool

    @classmethod
    def inside(
        cls, autocast: Callable[[], AbstractContextManager[object]], device: torch.device, gradients: bool
    ) -> "Settings":
        """Return what the context sets."""
        with autocast():
            return cls(torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type), gradients)


class RemoteStage:
    """A stage and its optimizer, called from another process; calls come on several threads."""

    here: ClassVar[Optional["RemoteStage"]] = None
    """This process's own: functions that are called from elsewhere find it by this name."""

    def __init__(self, stage: Stage, device: torch.device) -> None:
        self.stage = stage
        self.device = device
        self.optimizer: Optimizer | None = None
        self.turns = threading.Condition()
        self.next_part = 0
        self.contexts = ExitStack()

    @staticmethod
    def get() -> "RemoteStage":
        """Return this process's own."""
        assert RemoteStage.here is not None, "place has made it"
        return RemoteStage.here

    def own_optimizer(self) -> Optimizer:
        """Return the optimizer of this stage."""
        assert self.optimizer is not None, "make_optimizer has made it"
        return self.optimizer

    def parameters(self) -> list["rpc.RRef[nn.Parameter]"]:
        """Return references for the distributed optimizer."""
        return [rpc.RRef(each) for each in self.stage.parameters()]

    def begin_batch(self) -> None:
        """Expect the first micro-batch of another batch."""
        with self.turns:
            self.next_part = 0

    def forward_from(self, before: "rpc.RRef[Tensor]", part: int, settings: Settings) -> Tensor:
        """Return this stage's answer to a batch's micro-batch of that number, from where the reference points."""
        images = before.to_here()
        # One at a time, in their order: the statistics of batch norm depend on it.
        with (
            self.turn_of(part),
            torch.set_grad_enabled(settings.gradients),
            torch.autocast(self.device.type, dtype=settings.dtype, enabled=settings.autocast),
        ):
            answer: Tensor = self.stage(images)
            return answer

    @contextmanager
    def turn_of(self, part: int) -> Iterator[None]:
        """Inside, all micro-batches before this one are done; raises TimeoutError if they never are."""
        with self.turns:
            if not self.turns.wait_for(lambda: self.next_part == part, timeout=TIMEOUT.total_seconds()):
                raise TimeoutError(f"micro-batch {self.next_part} never came; {part} waits for it")
            try:
                yield
            finally:
                self.next_part += 1
                self.turns.notify_all()

    def squared_norm(self, context: int) -> float:
        """Return the squared 2-norm of this stage's gradients."""
        gradients = self._gradients(context)
        return float(nn.utils.get_total_norm(gradients).square())

    def scale_gradients(self, context: int, factor: float) -> None:
        """Multiply them, where they are."""
        for gradient in self._gradients(context):
            gradient.mul_(factor)

    def _gradients(self, context: int) -> list[Tensor]:
        return list(dist_autograd.get_gradients(context).values())  # type: ignore[attr-defined]


class RemoteStep(Optimizer):
    """One step of all stages' optimizers: the driver's starts it, the others' wait for it.

    Its parameter groups are those of this process's own optimizer, so that a schedule here sets the rate here.
    """

    def __init__(self, stage: RemoteStage, parameters: Sequence["rpc.RRef[nn.Parameter]"]) -> None:
        own = stage.own_optimizer()
        super().__init__(own.param_groups, own.defaults)
        self.param_groups = own.param_groups
        self.state = own.state
        self.distributed = DistributedOptimizer(own_optimizer, list(parameters)) if parameters else None  # type: ignore[no-untyped-call]
        self.contexts = stage.contexts
        self.number: int | None = None

    def context(self) -> int:
        """Return the number of the context in which this step's gradients are added up."""
        assert self.number is not None, "zero_grad begins a step"
        return self.number

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin a step: its gradients are in a context of distributed autograd, not at the parameters."""
        self.contexts.close()
        if self.distributed is not None:
            self.number = self.contexts.enter_context(dist_autograd.context())

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Change all stages' weights; return when all are changed."""
        if self.distributed is not None:
            self.distributed.step(self.context())  # type: ignore[no-untyped-call]
        self.contexts.close()
        dist.barrier()


def own_optimizer(_: Sequence[nn.Parameter]) -> Optimizer:
    """Return the optimizer of the process that this is called in: it has been made there for these parameters."""
    return RemoteStage.get().own_optimizer()
