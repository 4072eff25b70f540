"""Batches through the stages of a network, a process each, in micro-batches: torch.distributed.pipelining on a ResNet.

The schedule is GPipe's (Huang et al. 2019, arXiv 1811.06965): all micro-batches forward, then all backward.
"""

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from training.models.resnet import ResNet
from training.parallel.pipelines.stages import Stage, cut, num_parts, shapes_between
from training.parallel.strategy import Pass, Sums

Wrap = Callable[[Stage], nn.Module]


class Pipeline:
    """This process's stage, and the schedules that take batches through all of them."""

    def __init__(
        self, network: ResNet, *, index: int, group: dist.ProcessGroup, num_micro_batches: int, device: torch.device
    ) -> None:
        self.group = group
        self.device = device
        self.num_micro_batches = num_micro_batches
        stages = cut(network, group.size())
        self.index, self.num_stages = index, len(stages)
        # Copies without numbers tell the shapes between stages.
        self.skeletons = [deepcopy(stage).to("meta") for stage in stages]
        self.stage = stages[index].to(device)
        self.module: nn.Module = self.stage
        # One for each shape of a batch: what is sent and received has a fixed size.
        self.schedules: dict[tuple[torch.Size, torch.dtype, bool], ScheduleGPipe] = {}
        self.how: Pass | None = None
        self.factor = 1.0
        self.sums: list[Sums] = []

    def wrap(self, wrap: Wrap) -> None:
        """Replace this process's stage by what the function makes of it."""
        self.module = wrap(self.stage)

    def forward_backward(self, images: Tensor, labels: Tensor, how: Pass, factor: float) -> Sums:
        """Add the gradients of `factor` times the weighted loss; the sums are the last stage's, zeros elsewhere."""
        schedule = self._schedule(images, training=True)
        self.how, self.factor, self.stage.autocast = how, factor, how.autocast
        self.sums = []
        schedule.step(*self._input(images), target=labels if self.stage.is_last else None, return_outputs=False)
        return self._total()

    def evaluate(self, images: Tensor, labels: Tensor, how: Pass) -> Sums:
        """Take images, which may be none, through all stages without gradients."""
        self.sums = []
        if len(images):
            schedule = self._schedule(images, training=False)
            self.stage.autocast = how.autocast
            with torch.no_grad():
                logits = schedule.eval(*self._input(images))
                if self.stage.is_last:
                    with how.autocast():
                        loss = how.loss_function(logits, labels)
                    self.sums.append(Sums(loss, (logits.argmax(dim=1) == labels).sum()))
        return self._total()

    def _input(self, images: Tensor) -> tuple[Tensor, ...]:
        return (images,) if self.stage.is_first else ()

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of a micro-batch, on the last stage."""
        assert self.how is not None, "forward_backward sets it"
        with self.how.autocast():
            loss = self.how.loss_function(logits, labels)
        self.sums.append(Sums(loss.detach(), (logits.argmax(dim=1) == labels).sum()))
        return loss * self.how.weight * self.factor

    def _total(self) -> Sums:
        zeros = Sums(torch.zeros((), device=self.device), torch.zeros((), dtype=torch.int64, device=self.device))
        losses, counts = zip(zeros, *self.sums, strict=True)
        return Sums(torch.stack(losses).sum(), torch.stack(counts).sum())

    def _schedule(self, images: Tensor, *, training: bool) -> ScheduleGPipe:
        key = (images.shape, images.dtype, training)
        if key not in self.schedules:
            parts = num_parts(len(images), self.num_micro_batches) if training else 1
            shapes = shapes_between(self.skeletons, (len(images) // parts, *images.shape[1:]), images.dtype)
            # Said beforehand, shapes need no trial run, which would count in the statistics of batch norm.
            before = shapes[self.index].clone().requires_grad_(training and not self.stage.is_first)
            after = shapes[self.index + 1].clone().requires_grad_(training)
            stage = PipelineStage(
                self.module,
                self.index,
                self.num_stages,
                self.device,
                input_args=before,
                output_args=after,
                group=self.group,
            )
            # The loss is a sum with a weight of its own.
            loss = self._loss if training else None
            self.schedules[key] = ScheduleGPipe(stage, parts, loss_fn=loss, scale_grads=False)
        return self.schedules[key]
