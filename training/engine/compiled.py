"""torch.compile, and what it needs."""

import torch
from torch import Tensor, nn

from training.errors import SettingError


def compile_network(network: nn.Module, device: torch.device) -> None:
    """Compile the network's calls when they are first made, in place, so that the names of its weights stay.

    Raises SettingError where this machine cannot compile for the device.
    """
    # It takes a second to load.
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415

    try:
        # The smallest thing there is: what is missing shows before the network is traced.
        torch.compile(_one_more)(torch.ones(1, device=device))
    except TorchDynamoException as error:
        reason = str(error).strip().splitlines()[0]
        raise SettingError(
            f"--torch-compile cannot be done here: {reason}; on a CPU it needs a C++ compiler (g++, or what CXX names) "
            "and Python's headers, on a GPU Triton"
        ) from error
    network.compile()


def _one_more(values: Tensor) -> Tensor:
    return values + 1
