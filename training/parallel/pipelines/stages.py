"""The network cut into stages, one after the other; each keeps the names that its layers have in the whole."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict
from torch.optim import Optimizer

from training.errors import SettingError
from training.models.resnet import ResNet
from training.parallel.batch_norm import at_least_float32


class Stage(nn.Module):
    """Some residual blocks of a network in a row, with the stem before the first and the last layer behind the last."""

    def __init__(self, network: ResNet, first: int, stop: int) -> None:
        super().__init__()
        blocks = list(_blocks(network).named_children())
        self.is_first, self.is_last = first == 0, stop == len(blocks)
        self.autocast: Callable[[], AbstractContextManager[object]] = nullcontext
        if self.is_first:
            self.stem = network.stem
        self.stages = nn.Sequential(OrderedDict(blocks[first:stop]))
        if self.is_last:
            self.pool, self.linear = network.pool, network.linear

    def forward(self, x: Tensor) -> Tensor:
        """Images or the stage before's answer, float [N, C, H, W] -> this one's, the last one's logits."""
        with self.autocast():
            if self.is_first:
                x = self.stem(x)
            x = self.stages(x)
            if self.is_last:
                x = self.linear(torch.flatten(self.pool(x), 1))
        # What goes from stage to stage has one type and layout, whatever is computed with inside.
        return at_least_float32(x).contiguous()


def check_stages(network: ResNet, num_stages: int) -> None:
    """Raise SettingError if there are more stages than blocks, or only one."""
    num_blocks = len(_blocks(network))
    if not 2 <= num_stages <= num_blocks:
        raise SettingError(
            f"the network would be split into {num_stages} stages; allowed is 2 to {num_blocks}, "
            "the number of its residual blocks"
        )


def cut(network: ResNet, num_stages: int) -> list[Stage]:
    """Return the stages, with as equal numbers of blocks as there can be.

    That balances them: blocks of all widths cost about the same, since the width doubles where the height and the width
    of the images halve (He et al. 2015, arXiv 1512.03385, section 3.3).
    """
    check_stages(network, num_stages)
    indices = torch.tensor_split(torch.arange(len(_blocks(network))), num_stages)
    return [Stage(network, int(part[0]), int(part[-1]) + 1) for part in indices]


def shapes_between(skeletons: Sequence[Stage], images: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """Return tensors without numbers like the images [N, C, H, W] and each stage's answer to them."""
    x = torch.empty(images, dtype=dtype, device="meta")
    shapes = [x]
    with torch.no_grad():
        for skeleton in skeletons:
            x = skeleton(x)
            shapes.append(x)
    return shapes


def num_parts(num_images: int, wanted: int) -> int:
    """Return the largest number up to the wanted one that splits the images evenly."""
    return next(number for number in range(min(wanted, num_images), 0, -1) if num_images % number == 0)


def merged(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of all stages' networks in one."""
    return {name: value for state in states for name, value in state.items()}


def merged_optimizers(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the state of all stages' optimizers in one; their parameter groups correspond."""
    groups = [
        {**parts[0], "params": [name for part in parts for name in part["params"]]}
        for parts in zip(*(state["param_groups"] for state in states), strict=True)
    ]
    return {"state": merged([state["state"] for state in states]), "param_groups": groups}


def load_stage(stage: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the stage's part of the network's state."""
    stage.load_state_dict({name: state[name] for name in stage.state_dict()})


def load_stage_optimizer(stage: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load the stage's part of the optimizer's state."""
    names = {name for name, _ in stage.named_parameters()}
    groups = [
        {**group, "params": [name for name in group["params"] if name in names]} for group in state["param_groups"]
    ]
    own = {name: deepcopy(value) for name, value in state["state"].items() if name in names}
    set_optimizer_state_dict(stage, optimizer, {"state": own, "param_groups": groups})


def _blocks(network: ResNet) -> nn.Sequential:
    assert isinstance(network.stages, nn.Sequential), "build_model makes it one"
    return network.stages
