"""What goes to the backend together, and how it is formed of what waits."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.batching.batch_trace import BatchTrace
from service.batching.latency_model import InFlightEstimate, LatencyModel
from service.batching.queue import BatchLimits, Item, ItemQueue
from service.domain.backend import BatchAnswer, BatchOptions
from service.telemetry.labels import CloseReason


@dataclass(slots=True, eq=False)
class Batch:
    """Images that go to the backend together."""

    items: Sequence[Item]
    reason: CloseReason
    limit: int  # of images, when it was formed
    is_repeated: bool = False  # as it is, because its worker died
    expected: InFlightEstimate | None = None  # while it is in flight
    trace: BatchTrace | None = None  # while it is in flight, if one of its requests is recorded

    def options(self) -> BatchOptions:
        """Return what it asks the backend for."""
        return BatchOptions(
            max([item.call.top_k for item in self.items]),
            headers=() if self.trace is None else self.trace.span.headers(),
        )

    def end_trace(self, now: float, answer: BatchAnswer | None, error: str | None = None) -> None:
        """Record that it was answered, or why not."""
        if self.trace is not None:
            trace, self.trace = self.trace, None
            trace.end(now, self.limit, self.reason, answer, error)


class BatchFormer:
    """Takes batches from a queue: the most urgent images, and of them as many as it is good to have together."""

    def __init__(self, queue: ItemQueue, forecast: LatencyModel, limits: BatchLimits) -> None:
        self._queue = queue
        self._latency_model = forecast
        self._limits = limits

    @property
    def has_full_batch(self) -> bool:
        """Tell whether so many wait that the next batch would not be larger if it were formed later."""
        num_waiting = len(self._queue)
        return num_waiting >= self._latency_model.limit_for(num_waiting)

    def next(self, now: float, is_draining: bool) -> Batch | None:
        """Take the next batch of images whose callers still wait; None if nobody does."""
        items: list[Item] = []
        num_bytes = most = limit = 0
        reason: CloseReason = "full"
        while self._queue:
            item = self._queue.peek()
            if not item.is_wanted(now):
                self._queue.pop()
                if item.call.deadline <= now:
                    self._latency_model.compare(item.call.foreseen_seconds, now - item.call.submitted_at)
                continue
            if not items:
                most, limit, reason = self._bounds(item.call.deadline - now)
            elif len(items) == most:
                return Batch(items, reason, limit)
            elif num_bytes + len(item.payload) > self._limits.max_batch_bytes:
                return Batch(items, "full", limit)
            items.append(self._queue.pop())
            num_bytes += len(item.payload)
        return Batch(items, "drain" if is_draining else "idle", limit) if items else None

    def _bounds(self, seconds_left: float) -> tuple[int, int, CloseReason]:
        """Return how many images the next batch takes at most, the limit for one, and why not more is taken.

        `seconds_left` is how much time its first image has.
        """
        num_waiting = len(self._queue)
        limit = self._latency_model.limit_for(num_waiting)
        most = min(self._latency_model.share_of(num_waiting), limit)
        in_time = self._latency_model.limit_within(seconds_left, most)
        if in_time < most:
            return in_time, in_time, "deadline"
        return most, limit, "shared" if most < limit else "full"
