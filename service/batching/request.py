"""A request for inference: its items, its results, and the deadline that ends it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from service.domain.backend import ItemError, ItemResult, Priority
from service.errors.gateway import DeadlineExceeded, GatewayError
from service.telemetry.labels import CloseReason
from service.telemetry.tracing import OpenSpan

_sequence = count()


def _ignore() -> None:
    """Replace a callback that has been called."""


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """When a batch was sent, how long its round trip took, and how the worker spent that time."""

    sent_at: float
    seconds: float
    decode_seconds: float
    compute_seconds: float


@dataclass(slots=True, eq=False)
class InferenceRequest:
    """One caller's items. It ends with the last result, or earlier with an error."""

    num_items: int
    top_k: int
    deadline: float  # time.monotonic(), not the event loop's clock: uvloop's ticks in milliseconds
    on_done: Callable[[], None]  # called once, when the request ends; must not raise
    priority: Priority = "normal"
    span: OpenSpan | None = None  # None where the request is not traced
    is_done: bool = False
    error: Exception | None = None  # why it ended before its last result
    results: list[ItemResult | GatewayError | None] = field(init=False)
    num_missing: int = field(init=False)
    order: tuple[int, float, int] = field(init=False)  # larger goes first: priority, earliest deadline, first come
    queue_seconds: float = 0.0  # the longest wait of its items
    compute_seconds: float = 0.0  # the longest round trip of its batches
    largest_batch: int = 0
    num_batches: int = 0
    batch_limit: int = 0  # of its last batch, as are the next three
    close_reason: CloseReason = "idle"
    sent_at: float = 0.0  # 0 until its first item is sent
    last_batch: BatchTimes | None = None  # None until a batch is answered
    submitted_at: float = 0.0
    expected_seconds: float = 0.0  # forecast at admission; 0 where nothing was ahead

    def __post_init__(self) -> None:
        self.results = [None] * self.num_items
        self.num_missing = self.num_items
        self.order = (0 if self.priority == "normal" else -1, -self.deadline, -next(_sequence))

    def sift(self, items: Sequence[bytes | ItemError]) -> list[bytes | None]:
        """Answer the items that are errors already. Return the payloads of the others, None for answered ones."""
        if len(items) == 1 and isinstance(items[0], bytes):
            return [items[0]]
        for index, item in enumerate(items):
            if isinstance(item, ItemError):
                self.answer(index, item)
        return [None if isinstance(item, ItemError) else item for item in items]

    def expect(self, now: float, seconds: float) -> None:
        """Record at submission how long the request should take."""
        self.submitted_at, self.expected_seconds = now, seconds

    def add_batch(self, num_items: int, limit: int, reason: CloseReason, times: BatchTimes) -> None:
        """Record a batch that has answers for this request."""
        self.num_batches += 1
        self.largest_batch = max(self.largest_batch, num_items)
        self.compute_seconds = max(self.compute_seconds, times.seconds)
        self.batch_limit, self.close_reason, self.last_batch = limit, reason, times

    def answer(self, index: int, result: ItemResult | GatewayError) -> None:
        """Set one item's result; the last result ends the request."""
        self.results[index] = result
        self.num_missing -= 1
        if not self.num_missing:
            self.end()

    def end(self, error: Exception | None = None) -> None:
        """End the request unless it has ended. Its queued items are dropped later, before they are sent."""
        if not self.is_done:
            self.is_done, self.error = True, error
            on_done, self.on_done = self.on_done, _ignore  # break the reference cycle with the caller
            on_done()


@dataclass(slots=True, eq=False)
class Item:
    """One image of a request."""

    payload: bytes
    request: InferenceRequest
    index: int  # in the request
    queued_at: float

    def is_wanted(self, now: float) -> bool:
        """Return whether the caller still waits and the deadline is ahead."""
        return not self.request.is_done and self.request.deadline > now

    def send(self, now: float) -> None:
        """Record that the item goes to the backend."""
        self.request.sent_at = now

    def requeue(self, now: float) -> None:
        """Start a new wait after a failed attempt; the attempt itself does not count as waiting."""
        self._add_wait(self.request.sent_at)
        self.queued_at = now

    def answer(self, result: ItemResult, sent_at: float) -> None:
        """Set the item's result, which came with the batch sent at `sent_at`."""
        self._add_wait(sent_at)
        self.request.answer(self.index, result)

    def fail(self, error: GatewayError) -> None:
        """Set an error as the item's result; a result that it has stands."""
        if self.request.results[self.index] is None:
            self.request.answer(self.index, error)

    def _add_wait(self, sent_at: float) -> None:
        self.request.queue_seconds = max(self.request.queue_seconds, sent_at - self.queued_at)


class Deadlines:
    """Ends requests when their deadlines pass.

    All requests share one timer. A timer for each would cost as much as queueing it, and few would ever fire.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, InferenceRequest]] = []  # ended requests leave it at its top
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0

    def watch(self, request: InferenceRequest, deadline_ms: int) -> None:
        """End the request with DeadlineExceeded(deadline_ms) at its deadline, unless it ends before."""
        self._drop_ended()
        heappush(self._heap, (request.deadline, next(self._numbers), deadline_ms, request))
        self._set_timer()

    def _drop_ended(self) -> None:
        while self._heap and self._heap[0][3].is_done:
            heappop(self._heap)

    def _set_timer(self) -> None:
        earliest = self._heap[0][0]
        if self._timer is not None:
            if self._fires_at <= earliest:
                return
            self._timer.cancel()
        self._fires_at = earliest
        self._timer = asyncio.get_running_loop().call_later(max(earliest - time.monotonic(), 0), self._end_expired)

    def _end_expired(self) -> None:
        self._timer = None
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            _, _, deadline_ms, request = heappop(self._heap)
            request.end(DeadlineExceeded(deadline_ms))
        self._drop_ended()
        if self._heap:
            self._set_timer()
