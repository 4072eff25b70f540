"""An exponential moving average of the weights, and none, which costs nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from training.parallel.strategy import Strategy


class NoAverage:
    """The weights of the last step are the ones that count."""

    def update(self, network: nn.Module) -> None:
        """Nothing to take in."""

    @contextmanager
    def applied(self, network: nn.Module) -> Iterator[None]:
        """The network as it is."""
        yield

    def state_dict(self, network: nn.Module, strategy: Strategy) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def load_state_dict(self, network: nn.Module, strategy: Strategy, state: dict[str, Any]) -> None:
        """Nothing was kept."""


class MovingAverage:
    """The average of all tensors that this process holds of a placed network, the statistics of batch norm included.

    Kept beside the network and swapped into it, because torch's AveragedModel copies the module, which a network that
    is spread over processes does not allow.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.values = _copies(network)
        self.average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self.num_updates = 0

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take in the weights after a step; those after the first are the average's beginning."""
        state = network.state_dict()
        # Counts are not averaged.
        names = [name for name, value in self.values.items() if value.is_floating_point()]
        if self.num_updates:
            # Shards are averaged apart from what is whole: torch does not take the two in one call.
            for kind in {type(state[name]) for name in names}:
                same = [name for name in names if type(state[name]) is kind]
                self.average([self.values[name] for name in same], [state[name] for name in same], self.num_updates)
        for name, value in self.values.items():
            if not self.num_updates or not value.is_floating_point():
                value.copy_(state[name])
        self.num_updates += 1

    @contextmanager
    def applied(self, network: nn.Module) -> Iterator[None]:
        """Inside, the network has the averaged weights."""
        own = _copies(network)
        _fill(network, self.values)
        try:
            yield
        finally:
            _fill(network, own)

    def state_dict(self, network: nn.Module, strategy: Strategy) -> dict[str, Any]:
        """Return how many steps were taken in, and, on the main process, the whole average by plain names."""
        with self.applied(network):
            return {"num_updates": self.num_updates, "values": strategy.state_dict(network)}

    def load_state_dict(self, network: nn.Module, strategy: Strategy, state: dict[str, Any]) -> None:
        """Take up what state_dict returned; the network has the average then, too: load its own weights after."""
        strategy.load_state_dict(network, state["values"])
        self.values = _copies(network)
        self.num_updates = state["num_updates"]


Average = NoAverage | MovingAverage


def build_average(network: nn.Module, decay: float | None) -> Average:
    """Return the moving average with that decay per step; None is none."""
    return NoAverage() if decay is None else MovingAverage(network, decay)


def _copies(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


@torch.no_grad()
def _fill(network: nn.Module, values: dict[str, Tensor]) -> None:
    for name, value in network.state_dict().items():
        value.copy_(values[name])
