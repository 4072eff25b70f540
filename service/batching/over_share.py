"""A full queue: who has more of it than is fair, and what of theirs makes room for a caller that has less.

The request that leaves is the least urgent one of the caller with the most places for its share, as long as that is
more than the newcomer would have then (McKenney 1990, "Stochastic fairness queueing": drop from the longest queue).
So whoever is alone may use the whole queue, and nobody has to wait until it has drained.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from service.batching.queue import BatchLimits
from service.batching.request import InferenceRequest
from service.batching.turns import Lane
from service.domain.caller import Caller


@dataclass(slots=True)
class Holding:
    """What one caller has in the queue, or would have."""

    caller: Caller
    max_items: int  # of the queue
    max_bytes: int
    num_items: int = 0
    num_bytes: int = 0
    lanes: list[Lane] = field(default_factory=list)  # low priority first

    @property
    def part(self) -> float:
        """Return the part of the queue that it takes, divided by the caller's share."""
        return max(self.num_items / self.max_items, self.num_bytes / self.max_bytes) / self.caller.share

    def requests(self) -> Iterator[tuple[InferenceRequest, int, int]]:
        """Yield its requests, the least urgent first, each with its items and bytes."""
        for lane in self.lanes:
            for request, items in groupby(lane.items, key=lambda item: item.request):
                sizes = [len(item.payload) for item in items]
                yield request, len(sizes), sum(sizes)


def over_share(
    lanes: Iterable[Lane], limits: BatchLimits, caller: Caller, num_items: int, num_bytes: int
) -> tuple[Sequence[InferenceRequest], bool]:
    """Return the requests that leave for `num_items` more of `caller`, none if it may not push others out.

    `lanes` are those of low priority, then the others. The second value is whether the caller would have more than its
    share while others wait, so that this is why.
    """
    max_items, max_bytes = limits.max_queue_items, limits.max_queue_bytes
    holdings: dict[Caller, Holding] = {}
    for lane in (lane for lane in lanes if lane.items):
        holding = holdings.setdefault(lane.caller, Holding(lane.caller, max_items, max_bytes))
        holding.num_items += len(lane.items)
        holding.num_bytes += sum(len(item.payload) for item in lane.items)
        holding.lanes.append(lane)
    free_items = max_items - sum(each.num_items for each in holdings.values()) - num_items
    free_bytes = max_bytes - sum(each.num_bytes for each in holdings.values()) - num_bytes
    newcomer = holdings.pop(caller, None) or Holding(caller, max_items, max_bytes)
    newcomer.num_items += num_items
    newcomer.num_bytes += num_bytes
    least_urgent = {each.caller: each.requests() for each in holdings.values()}
    leaving: list[InferenceRequest] = []
    while free_items < 0 or free_bytes < 0:
        largest = max(holdings.values(), key=lambda holding: holding.part, default=None)
        if largest is None or largest.part <= newcomer.part:
            fair_part = 1 / sum(each.caller.share for each in (newcomer, *holdings.values()))
            return (), bool(holdings) and newcomer.part > fair_part
        victim, victim_items, victim_bytes = next(least_urgent[largest.caller])
        leaving.append(victim)
        largest.num_items -= victim_items
        largest.num_bytes -= victim_bytes
        free_items += victim_items
        free_bytes += victim_bytes
    return leaving, False
