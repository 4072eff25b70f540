"""The bounded queue of items: normal priority before low, callers in turn, of each the earliest deadline first.

The turns are a deficit round robin (Shreedhar and Varghese 1995). Each caller has a lane, in which its most urgent item
goes first. A turn is worth as many items as the caller's share, and what a share of 1.5 leaves over counts in the next
one. A caller that had nothing here begins at the end of the round, so it waits at most one turn of each of the others.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from service.batching.request import InferenceRequest, Item
from service.domain.caller import GATEWAY, Caller

# After items of two callers came in a row, the queue counts as shared for this long.
SHARED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of one version's batches and queue, the backend's timeout and the latency objective."""

    max_batch_size: int
    max_batch_bytes: int
    max_queue_items: int
    max_queue_bytes: int
    backend_timeout_ms: int
    latency_objective_ms: int

    def __post_init__(self) -> None:
        if min(self.max_batch_size, self.max_batch_bytes, self.max_queue_items, self.max_queue_bytes) < 1:
            raise ValueError(f"every limit must be at least 1: {self}")


class Lane:
    """What one caller has waiting."""

    __slots__ = ("caller", "credit", "items")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.items: list[Item] = []  # the most urgent is last, so that taking it moves no other
        self.credit = 0.0  # items that are left of its turn

    def place(self, request: InferenceRequest) -> int:
        """Return where the items of `request` belong."""
        items = self.items
        if not items or request.order < items[0].request.order:
            return 0  # nearly always: equal priorities, deadlines in the order of arrival
        return bisect_left(items, request.order, key=lambda item: item.request.order)


class Turns:
    """The lanes of all callers that wait; the first of `ring` has its turn, and has credit for at least one item.

    There is always a lane. One that is alone may be empty, so that a caller alone neither comes nor goes.
    """

    def __init__(self) -> None:
        lane = Lane(GATEWAY)
        self.ring = deque([lane])
        self._lanes = {lane.caller: lane}

    def push(self, items: Sequence[Item]) -> None:
        """Insert the items of one request into its caller's lane; they stay together."""
        request = items[0].request
        lane = self._lanes.get(request.caller) or self._join(request.caller)
        place = lane.place(request)
        lane.items[place:place] = reversed(items)

    def end_turn(self) -> None:
        """Count an item that the first of several lanes gave, and go on to the next lane if its turn is over."""
        lane = self.ring[0]
        lane.credit -= 1
        if not lane.items:
            self._leave(lane)
        elif lane.credit < 1:
            self.ring.rotate(-1)
            self._begin_turn()

    def keep(self, is_kept: Callable[[Item], bool]) -> None:
        """Remove all items but those."""
        for lane in list(self.ring):
            lane.items = [item for item in lane.items if is_kept(item)]
            if not lane.items and len(self.ring) > 1:
                self._leave(lane)

    def num_before(self, request: InferenceRequest) -> int:
        """Return how many items of others, and of its caller, should go before the last item of `request`."""
        own = self._lanes.get(request.caller)
        num_own = 0 if own is None else len(own.items) - own.place(request)
        if len(self.ring) == 1 and own is not None:
            return num_own
        num_turns = (num_own + request.num_items) / request.caller.share
        others = [lane for lane in self.ring if lane is not own]
        return num_own + sum([min(len(lane.items), math.ceil(num_turns * lane.caller.share)) for lane in others])

    def _join(self, caller: Caller) -> Lane:
        first = self.ring[0]
        if not first.items:
            del self._lanes[first.caller]
            self.ring.clear()
        elif len(self.ring) == 1:  # nobody counted turns while there was one
            first.credit = first.caller.share
        lane = self._lanes[caller] = Lane(caller)
        self.ring.append(lane)
        return lane

    def _leave(self, lane: Lane) -> None:
        del self._lanes[lane.caller]
        if lane is not self.ring[0]:
            self.ring.remove(lane)
            return
        self.ring.popleft()
        self._begin_turn()

    def _begin_turn(self) -> None:
        lane = self.ring[0]
        lane.credit += lane.caller.share


class ItemQueue:
    """Items of one version that wait for a batch."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._normal, self._low = Turns(), Turns()
        self.num_items = 0
        self.num_bytes = 0
        self._last_caller: Caller | None = None
        self._is_shared = False
        self._shared_at = 0.0  # when an item's caller was last another one than the item's before

    def has_room(self, num_items: int, num_bytes: int) -> bool:
        """Return whether the queue can take so much more."""
        return (
            self.num_items + num_items <= self._limits.max_queue_items
            and self.num_bytes + num_bytes <= self._limits.max_queue_bytes
        )

    def num_before(self, request: InferenceRequest) -> int:
        """Return how many items should leave before the last item of `request` does, its own left out."""
        if request.priority == "normal":
            return self._normal.num_before(request)
        return sum(len(lane.items) for lane in self._normal.ring) + self._low.num_before(request)

    def num_before_newcomer(self, num_waiting: int) -> int:
        """Return how many of `num_waiting` items a caller who has nothing here yet would wait for."""
        return min(num_waiting, max(len(self._normal.ring), len(self._low.ring))) if self._is_shared else num_waiting

    def push(self, items: Sequence[Item], num_bytes: int) -> None:
        """Insert the items of one request, `num_bytes` in total, at their place; they stay together."""
        request, now = items[0].request, items[0].queued_at
        if request.caller is not self._last_caller:
            self._is_shared, self._shared_at = self._last_caller is not None, now
            self._last_caller = request.caller
        elif self._is_shared and now - self._shared_at > SHARED_SECONDS:
            self._is_shared = False
        (self._normal if request.priority == "normal" else self._low).push(items)
        self.num_items += len(items)
        self.num_bytes += num_bytes

    def head(self) -> Item:
        """Return the item that `pop` would return; there must be one."""
        return (self._normal.ring[0].items or self._low.ring[0].items)[-1]

    def pop(self) -> Item:
        """Remove and return the item whose turn it is."""
        turns = self._normal if self._normal.ring[0].items else self._low
        item = turns.ring[0].items.pop()
        self.num_items -= 1
        self.num_bytes -= len(item.payload)
        if len(turns.ring) > 1:
            turns.end_turn()
        return item

    def drop(self) -> Item:
        """Remove and return the head; its caller's turn goes on."""
        turns = self._normal if self._normal.ring[0].items else self._low
        turns.ring[0].credit += 1
        return self.pop()

    def drop_unwanted(self, now: float) -> None:
        """Remove items whose callers left or whose deadlines passed."""
        self._keep(lambda item: item.is_wanted(now))

    @property
    def lanes(self) -> Sequence[Lane]:
        """Return the lanes of all callers, low priority first; one that is alone may be empty."""
        return (*self._low.ring, *self._normal.ring)

    def remove(self, requests: Collection[InferenceRequest]) -> None:
        """Remove the items of these requests."""
        self._keep(lambda item: item.request not in requests)

    def clear(self) -> Sequence[Item]:
        """Remove and return all items."""
        items = list(self)
        self._normal, self._low = Turns(), Turns()
        self.num_items = self.num_bytes = 0
        return items

    def oldest_age(self, now: float) -> float:
        """Return the longest wait in the queue in seconds; 0 when it is empty."""
        return now - min((item.queued_at for item in self), default=now)

    def __iter__(self) -> Iterator[Item]:
        """Yield every item; of each caller the least urgent first."""
        for lane in self.lanes:
            yield from lane.items

    def _keep(self, is_kept: Callable[[Item], bool]) -> None:
        self._low.keep(is_kept)
        self._normal.keep(is_kept)
        sizes = [len(item.payload) for item in self]
        self.num_items, self.num_bytes = len(sizes), sum(sizes)
