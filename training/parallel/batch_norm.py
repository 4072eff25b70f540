"""Batch norm whose statistics are those of the whole batch, wherever its images are.

torch.nn.SyncBatchNorm does this on GPUs, and refuses to on a CPU: its kernels are CUDA's. What stands here for the CPU
is algorithm 1 of Ioffe and Szegedy 2015 (arXiv 1502.03167) and its gradient, with the sums taken over all processes.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

AXES = (0, 2, 3)


def synchronise(network: nn.Module, device: torch.device, group: dist.ProcessGroup | None) -> nn.Module:
    """Return the network with each batch norm synchronised over the group; names and values of its state stay."""
    if device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network, group)  # type: ignore[no-untyped-call]
        return converted
    for parent in list(network.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.BatchNorm2d:
                setattr(parent, name, GlooBatchNorm2d(child, group))
    return network


class GlooBatchNorm2d(nn.BatchNorm2d):
    """A batch norm over all processes of a group, on the CPU; each may have another number of images, or none."""

    def __init__(self, local: nn.BatchNorm2d, group: dist.ProcessGroup | None) -> None:
        super().__init__(local.num_features, eps=local.eps, momentum=local.momentum, dtype=local.weight.dtype)
        self.load_state_dict(local.state_dict())
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H, W], of the same type; sums are taken in float32 or a longer one."""
        if not self.training:
            return super().forward(x)
        assert self.running_mean is not None, "networks here keep statistics"
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        y, mean, variance, count = _Normalise.apply(  # type: ignore[no-untyped-call]
            at_least_float32(x), self.weight, self.bias, self.eps, self.group
        )
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1).clamp(min=1), self.momentum)
        return y.to(x.dtype)  # type: ignore[no-any-return]


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor, eps: float, group: dist.ProcessGroup | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        own_count = x.numel() // x.shape[1]
        own_mean = x.sum(AXES) / max(own_count, 1)
        centred = x - _per_channel(own_mean)
        count, mean, variance = _over_all(own_count, own_mean, centred.square().sum(AXES), group)
        scale = torch.rsqrt(variance + eps)
        normal = torch.addcmul(_per_channel((own_mean - mean) * scale), centred, _per_channel(scale))
        ctx.save_for_backward(normal, weight, scale, count)
        ctx.group = group  # type: ignore[attr-defined]
        ctx.mark_non_differentiable(mean, variance, count)
        return normal * _per_channel(weight) + _per_channel(bias), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        normal, weight, scale, count = ctx.saved_tensors
        of_bias, of_weight = gradient.sum(AXES), (gradient * normal).sum(AXES)
        # Those of weight and bias stay this process's own: they are added up with all other gradients.
        means = torch.stack([of_bias, of_weight])
        dist.all_reduce(means, group=ctx.group)
        means = means / count
        of_x = gradient - _per_channel(means[0]) - normal * _per_channel(means[1])
        return of_x * _per_channel(weight * scale), of_weight, of_bias, None, None


def _over_all(
    count: int, mean: Tensor, squares: Tensor, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return count, mean and variance of what all processes have, from those of each and its squared deviations.

    They are exchanged once, which takes longer than the sums, and joined as Chan, Golub and LeVeque 1979 do (Stanford
    CS-79-773): a plain sum of squares would lose digits.
    """
    own = torch.stack([torch.full_like(mean, count), mean, squares]).double()  # a few numbers for each channel
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    counts, means, all_squares = torch.stack(parts, dim=1)
    total = counts[:, :1].sum(dim=0)
    overall = (counts * means).sum(dim=0) / total
    deviations = all_squares + counts * (means - overall).square()
    return total.to(mean.dtype), overall.to(mean.dtype), (deviations.sum(dim=0) / total).to(mean.dtype)


def at_least_float32(x: Tensor) -> Tensor:
    """Return the same numbers, in float32 if they were of a shorter type."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _per_channel(values: Tensor) -> Tensor:
    return values.reshape(1, -1, 1, 1)
