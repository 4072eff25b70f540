"""The bounded queue of items: normal priority before low, callers in turn, of each the earliest deadline first.

Large images wait apart, in turns of their own.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from service.batching.request import InferenceRequest, Item
from service.batching.turns import Lane, Turns
from service.domain.caller import Caller

WINDOW_SECONDS = 5.0  # who called in the last two of these has called of late
MOST_COMPARED = 256  # lanes, when the longest is looked for
DOMINANCE = 1.5  # times what each caller would have if all had as many items waiting


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


class ItemQueue:
    """Items of one version that wait for a batch."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._normal, self._low, self._large = Turns(), Turns(), Turns()
        self.num_items = self.num_usual = 0  # the latter without large images
        self.num_bytes = 0
        self.num_large = self.large_pixels = 0
        self._last_caller: Caller | None = None
        self._callers: set[Caller] = set()  # of the present window
        self._callers_before: set[Caller] = set()  # of the last one
        self._window_end = 0.0
        self.num_callers = 1  # of late

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
        return sum([len(lane.items) for lane in self._normal.lanes]) + self._low.num_before(request)

    def num_beside_greedy(self) -> int:
        """Return how many callers wait beside one that has far more here than the others who called of late.

        1 if it waits alone; 0 if there is no such caller.
        """
        if len(self._normal.by_caller) + len(self._low.by_caller) > MOST_COMPARED:
            return 0
        lengths = [len(lane.items) for turns in (self._low, self._normal) for lane in turns.lanes if lane.items]
        is_dominated = max(lengths, default=0) * self.num_callers > DOMINANCE * self.num_usual
        return max(len(lengths) - 1, 1) if is_dominated and self.num_callers > 1 else 0

    def push(self, items: Sequence[Item], num_bytes: int) -> None:
        """Insert the items of one request, `num_bytes` in total, at their place; they stay together."""
        request, now = items[0].request, items[0].queued_at
        if request.caller is not self._last_caller or now > self._window_end:
            self._note_caller(request.caller, now)
        self.num_items += len(items)
        self.num_usual += len(items)
        self.num_bytes += num_bytes
        if large := [item for item in items if item.is_large]:
            self._large.push(large)
            self.num_large += len(large)
            self.num_usual -= len(large)
            self.large_pixels += sum(item.pixels for item in large)
            items = [item for item in items if not item.is_large]
        if items:
            (self._normal if request.priority == "normal" else self._low).push(items)

    @property
    def num_others_of_each_large(self) -> float:
        """Return how many callers have items here that are not large, divided by those who have large ones."""
        num_large = sum([bool(lane.items) for lane in self._large.lanes])
        others = {lane.caller for turns in (self._low, self._normal) for lane in turns.lanes if lane.items}
        return len(others) / max(num_large, 1)

    def head(self) -> Item:
        """Return the item that `pop` would return; there must be one."""
        return (self._normal.first.items or self._low.first.items)[-1]

    def pop(self) -> Item:
        """Remove and return the item whose turn it is, none that is large."""
        return self._take(self._normal if self._normal.first.items else self._low)

    def pop_large(self, now: float) -> Item | None:
        """Remove and return the large image whose turn it is, and those before it that nobody wants."""
        while self.num_large:
            if (item := self._take(self._large)).is_wanted(now):
                return item
        return None

    def drop(self) -> Item:
        """Remove and return the head; its caller's turn goes on."""
        (self._normal if self._normal.first.items else self._low).first.credit += 1
        return self.pop()

    def drop_unwanted(self, now: float) -> None:
        """Remove items whose callers left or whose deadlines passed."""
        self._keep(lambda item: item.is_wanted(now))

    @property
    def lanes(self) -> Sequence[Lane]:
        """Return the lanes of all callers, large images and low priority first; some may be empty."""
        return (*self._large.lanes, *self._low.lanes, *self._normal.lanes)

    def remove(self, requests: Collection[InferenceRequest]) -> None:
        """Remove the items of these requests."""
        self._keep(lambda item: item.request not in requests)

    def clear(self) -> Sequence[Item]:
        """Remove and return all items."""
        items = list(self)
        self._normal, self._low, self._large = Turns(), Turns(), Turns()
        self.num_items = self.num_usual = self.num_bytes = self.num_large = self.large_pixels = 0
        return items

    def oldest_age(self, now: float) -> float:
        """Return the longest wait in the queue in seconds; 0 when it is empty."""
        return now - min((item.queued_at for item in self), default=now)

    def __iter__(self) -> Iterator[Item]:
        """Yield every item; of each caller the least urgent first."""
        for lane in self.lanes:
            yield from lane.items

    def _take(self, turns: Turns) -> Item:
        item = turns.first.items.pop()
        self._count(item, -1)
        if len(turns.by_caller) > 1:
            turns.end_turn()
        return item

    def _note_caller(self, caller: Caller, now: float) -> None:
        self._last_caller = caller
        if now > self._window_end:
            self._window_end = now + WINDOW_SECONDS
            self._callers_before, self._callers = self._callers, set()
        if caller not in self._callers:
            self._callers.add(caller)
            self.num_callers = len(self._callers | self._callers_before)

    def _keep(self, is_kept: Callable[[Item], bool]) -> None:
        for turns in (self._large, self._low, self._normal):
            turns.keep(is_kept)
        self.num_items = self.num_usual = self.num_bytes = self.num_large = self.large_pixels = 0
        for item in self:
            self._count(item, 1)

    def _count(self, item: Item, sign: int) -> None:
        self.num_items += sign
        self.num_bytes += sign * len(item.payload)
        if item.is_large:
            self.num_large += sign
            self.large_pixels += sign * item.pixels
        else:
            self.num_usual += sign
