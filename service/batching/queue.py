"""The bounded queue of items: normal priority before low, then earliest deadline first, then first come."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from service.batching.request import InferenceRequest, Item


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
        self.items: list[Item] = []  # the most urgent is last, so that taking it moves no other
        self.num_bytes = 0

    def has_room(self, num_items: int, num_bytes: int) -> bool:
        """Return whether the queue can take so much more."""
        return (
            len(self.items) + num_items <= self._limits.max_queue_items
            and self.num_bytes + num_bytes <= self._limits.max_queue_bytes
        )

    def num_before(self, request: InferenceRequest) -> int:
        """Return how many items are more urgent than those of `request`."""
        return len(self.items) - self._place(request)

    def push(self, items: Sequence[Item], num_bytes: int) -> None:
        """Insert the items of one request, `num_bytes` in total, at their place; they stay together."""
        place = self._place(items[0].request)
        self.items[place:place] = reversed(items)
        self.num_bytes += num_bytes

    def pop(self) -> Item:
        """Remove and return the most urgent item."""
        item = self.items.pop()
        self.num_bytes -= len(item.payload)
        return item

    def drop_unwanted(self, now: float) -> None:
        """Remove items whose callers left or whose deadlines passed."""
        self.items = [item for item in self.items if item.is_wanted(now)]
        self.num_bytes = sum(len(item.payload) for item in self.items)

    def clear(self) -> Sequence[Item]:
        """Remove and return all items."""
        items, self.items, self.num_bytes = self.items, [], 0
        return items

    def oldest_age(self, now: float) -> float:
        """Return the longest wait in the queue in seconds; 0 when it is empty."""
        return now - min((item.queued_at for item in self.items), default=now)

    def _place(self, request: InferenceRequest) -> int:
        if not self.items or request.order < self.items[0].request.order:
            return 0  # nearly always: equal priorities, deadlines in the order of arrival
        return bisect_left(self.items, request.order, key=lambda item: item.request.order)
