"""One process, several GPUs: torch.nn.DataParallel copies the network to each for every batch.

DistributedDataParallel is faster: it copies once and is not held up by Python's lock. This one needs no processes.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from training.errors import SettingError
from training.parallel.single import SingleProcess


class DataParallel(SingleProcess):
    """All GPUs of this machine, from one process; batch norm sees a GPU's images, the first one's statistics stay."""

    def __init__(self, device: torch.device) -> None:
        num_gpus = torch.cuda.device_count()
        if device.type != "cuda" or num_gpus < 2:
            raise SettingError(
                f"--strategy data-parallel splits a batch over GPUs: it needs --device cuda and at least two of them; "
                f"the device is {device.type}, torch sees {num_gpus} GPUs. On this machine ddp spreads the same work"
            )
        super().__init__(torch.device("cuda", 0))

    def place(self, network: nn.Module) -> nn.Module:
        """Return the network on the first GPU, which lends it to the others and gets the sum of their gradients."""
        return nn.DataParallel(network.to(self.world.device))

    def state_dict(self, network: nn.Module) -> dict[str, Tensor]:
        """Return copies on the CPU."""
        return super().state_dict(inside(network))

    def load_state_dict(self, network: nn.Module, state: dict[str, Tensor]) -> None:
        """Load it."""
        super().load_state_dict(inside(network), state)

    def optimizer_state(self, network: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """Return copies on the CPU, by plain names."""
        return super().optimizer_state(inside(network), optimizer)

    def load_optimizer_state(self, network: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load it."""
        super().load_optimizer_state(inside(network), optimizer, state)


def inside(network: nn.Module) -> nn.Module:
    """Return the network that DataParallel wraps."""
    assert isinstance(network, nn.DataParallel), "it was placed here"
    wrapped: nn.Module = network.module
    return wrapped
