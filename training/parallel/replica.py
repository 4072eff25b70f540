"""What strategies share whose processes hold the whole network, shards or stages of it: passes, norms, states."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from training.parallel.strategy import Pass, Sums

# torch.distributed.checkpoint takes as long to import as torch itself, and most stages save no optimizer.
# ruff: noqa: PLC0415


def forward_backward(network: nn.Module, images: Tensor, labels: Tensor, how: Pass, num_shards: int) -> Sums:
    """Add the gradients of this shard, where the strategy averages gradients over that many shards."""
    with how.autocast():
        logits = network(images)
        loss = how.loss_function(logits, labels)
    (loss * how.weight * num_shards).backward()  # type: ignore[no-untyped-call]
    return Sums(loss.detach(), (logits.argmax(dim=1) == labels).sum())


def evaluate(network: nn.Module, images: Tensor, labels: Tensor, how: Pass) -> Sums:
    """Take a shard, which may be empty, through the network without gradients."""
    # Not inference_mode: what a strategy exchanges around a pass is used in training, too.
    with torch.no_grad(), how.autocast():
        logits = network(images)
        return Sums(how.loss_function(logits, labels), (logits.argmax(dim=1) == labels).sum())


def clip_gradients(network: nn.Module, max_norm: float | None) -> Tensor:
    """Return the 2-norm of the gradients that are here; scale them down to `max_norm` where it is larger."""
    if max_norm is None:
        return nn.utils.get_total_norm([each.grad for each in network.parameters() if each.grad is not None])
    return nn.utils.clip_grad_norm_(network.parameters(), max_norm)


def state_dict(network: nn.Module) -> dict[str, Tensor]:
    """Return copies on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}


def optimizer_state(network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return copies on the CPU, by the names of the parameters."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    return get_optimizer_state_dict(network, optimizer, options=StateDictOptions(cpu_offload=True))


def load_optimizer_state(network: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load what `optimizer_state` returned."""
    from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

    set_optimizer_state_dict(network, optimizer, deepcopy(state))
