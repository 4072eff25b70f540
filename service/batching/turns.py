"""Callers take turns, and of each the earliest deadline goes first.

The turns are a deficit round robin (Shreedhar and Varghese 1995). Each caller has a lane, in which its most urgent item
goes first. A turn is worth as many items as the caller's share, and what a share of 1.5 leaves over counts in the next
one. A caller that had nothing here goes first, for one turn: few requests never wait behind many.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice

from service.batching.request import InferenceRequest, Item
from service.domain.caller import GATEWAY, Caller

MOST_NEW_TURNS = 64  # in a row, before the ring goes on
MOST_EMPTY_LANES = 1024
MOST_COUNTED = 128  # lanes, when a wait is estimated: a thousand would take half a millisecond of each request


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
    """The lanes of all callers that wait. There is always one; one that is alone may be empty, and counts no turns.

    A caller that had nothing here has one turn before the ring, whose callers wait for more than a turn. Then its lane
    joins the end of the ring. It stays there until its turn comes, even if it is empty: so nobody goes first twice
    before the ring has gone on (as in FQ-CoDel, RFC 8290).
    """

    def __init__(self) -> None:
        self.first = Lane(GATEWAY)  # whose turn it is; empty only if it is alone
        self.by_caller = {self.first.caller: self.first}
        self._new: deque[Lane] = deque()  # none of them is empty
        self._ring = deque([self.first])
        self._num_new_turns = 0  # since the ring went on
        self._purge_at = MOST_EMPTY_LANES

    @property
    def lanes(self) -> Collection[Lane]:
        """Return all lanes; some may be empty."""
        return self.by_caller.values()

    def push(self, items: Sequence[Item]) -> None:
        """Insert the items of one request into its caller's lane; they stay together."""
        request = items[0].request
        lane = self.by_caller.get(request.caller) or self._join(request.caller)
        place = lane.place(request)
        lane.items[place:place] = reversed(items)

    def end_turn(self) -> None:
        """Count an item that the first of several lanes gave, and go on to the next lane if its turn is over."""
        lane = self.first
        lane.credit -= 1
        if lane.items and lane.credit >= 1:
            return
        if self._new and lane is self._new[0]:
            self._ring.append(self._new.popleft())
            self._num_new_turns += 1
        else:
            self._num_new_turns = 0
            if lane.items:
                self._ring.rotate(-1)
        self._choose()

    def keep(self, is_kept: Callable[[Item], bool]) -> None:
        """Remove all items but those."""
        for lane in self.by_caller.values():
            lane.items = [item for item in lane.items if is_kept(item)]
        self._ring.extend(lane for lane in self._new if not lane.items)
        self._new = deque(lane for lane in self._new if lane.items)
        self._choose()

    def num_before(self, request: InferenceRequest) -> int:
        """Return how many items of others, and of its caller, should go before the last item of `request`.

        Of more than MOST_COUNTED lanes it is an estimate: each stands for its neighbours, too. None weighs much, since
        no lane gives more than its turns are worth.
        """
        own = self.by_caller.get(request.caller)
        num_own = 0 if own is None else len(own.items) - own.place(request)
        if len(self.by_caller) == 1 and own is not None:
            return num_own
        num_turns = (num_own + request.num_items) / request.caller.share
        goes_first = num_turns <= 1 and (own is None or own in self._new)
        lanes = self._new if goes_first else self.by_caller.values()
        step = max(math.ceil(len(lanes) / MOST_COUNTED), 1)
        others = [lane for lane in islice(lanes, 0, None, step) if lane is not own]
        before = sum([min(len(lane.items), math.ceil(num_turns * lane.caller.share)) for lane in others])
        return num_own + before * step

    def _join(self, caller: Caller) -> Lane:
        lane = Lane(caller)
        if len(self.by_caller) == 1:
            self._new.clear()
            self._ring = deque([self.first])
            self.first.credit = 0.0  # its turn has not begun: nobody counted
            if not self.first.items:
                self._ring = deque([lane])
                self.by_caller = {caller: lane}
                self.first = lane
                return lane
        elif len(self.by_caller) >= self._purge_at:
            self._ring = deque(lane for lane in self._ring if lane.items or lane is self.first)
            self.by_caller = {lane.caller: lane for lane in (*self._ring, *self._new)}
            self._purge_at = len(self.by_caller) + MOST_EMPTY_LANES
        lane.credit = caller.share
        self.by_caller[caller] = lane
        self._new.append(lane)
        self._choose()
        return lane

    def _choose(self) -> None:
        """Set whose turn it is."""
        if self._new and self._num_new_turns < MOST_NEW_TURNS:
            self.first = self._new[0]
            return
        while self._ring and not self._ring[0].items and len(self.by_caller) > 1:
            del self.by_caller[self._ring.popleft().caller]
        self.first = self._ring[0] if self._ring else self._new[0]
        if self.first.credit < 1:
            self.first.credit += self.first.caller.share
