"""What both ways to an int8 network share: its layers, the range of activations, and what convert_fx leaves to do."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter

from torch import nn
from torch.fx import GraphModule

from training.models.early_exit import EarlyExitResNet

# The end of a calibrated range: 7 bits by 8 bits of weight, so that sums of two products do not overflow the 16 bits
# that a processor without VNNI has for them. The layers cut off at 255: an activation beyond its range may
# saturate such a sum.
LARGEST_ACTIVATION = 127


def with_layers(network: nn.Module, change: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Return the network, its layers changed.

    A loop cannot be taken apart into layers: of such a network, what every image goes through is changed, in place.
    """
    if isinstance(network, EarlyExitResNet):
        network.body = change(network.body)
        return network
    return change(network)


def with_plain_scales(network: GraphModule) -> GraphModule:
    """Replace scales and zero points that are tensors by numbers: a trace would warn that it takes them for constants.

    They are: calibration is over.
    """
    for node in list(network.graph.nodes):
        if node.op == "get_attr":
            value = attrgetter(str(node.target))(network)
            assert value.numel() == 1, f"{node.target} is no scale or zero point of a whole tensor"
            number = value.item()
            for user in list(node.users):
                user.args = tuple(number if argument is node else argument for argument in user.args)
            network.graph.erase_node(node)
    network.delete_all_unused_submodules()
    network.recompile()
    return network


@contextmanager
def quantization_deprecations_ignored() -> Iterator[None]:
    """Keep quiet, inside, what torch says of its quantization; nothing that succeeds it can be held by TorchScript."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.ao.quantization is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        yield
