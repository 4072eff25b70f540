"""A request for inference, its items, and the batches in which they go to the backend."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from service.batching.batch_trace import BatchTrace, Wait
from service.domain.backend import BatchAnswer, BatchOptions, ItemError, ItemResult, Priority, Ranking, Target
from service.domain.caller import GATEWAY, Caller
from service.errors.gateway import BackendFailed, DeadlineExceeded, GatewayError
from service.telemetry.metric_labels import CloseReason
from service.telemetry.tracing import OpenSpan

_sequence = count()
Phase = Literal["formed", "waiting", "running", "finishing", "ended"]  # see service.batching.batch_former


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
    caller: Caller = GATEWAY
    is_done: bool = False
    error: Exception | None = None  # why it ended before its last result
    results: list[ItemResult | GatewayError | None] = field(init=False)
    num_missing: int = field(init=False)
    # Among its caller's, larger goes first: priority, earliest deadline, first come.
    order: tuple[int, float, int] = field(init=False)
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
    _timer: asyncio.TimerHandle | None = None  # of the deadline

    def __post_init__(self) -> None:
        self.results = [None] * self.num_items
        self.num_missing = self.num_items
        self.order = (0 if self.priority == "normal" else -1, -self.deadline, -next(_sequence))

    def expire(self, deadline_ms: int) -> None:
        """End the request with DeadlineExceeded(deadline_ms) at its deadline, unless it ends before."""
        if not self.is_done:
            seconds = max(self.deadline - time.monotonic(), 0)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._exceed, deadline_ms)

    def _exceed(self, deadline_ms: int) -> None:
        self.end(DeadlineExceeded(deadline_ms))

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
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            on_done, self.on_done = self.on_done, _ignore  # break the reference cycle with the caller
            on_done()


@dataclass(slots=True, eq=False)
class Item:
    """One image of a request."""

    payload: bytes
    request: InferenceRequest
    index: int  # in the request
    queued_at: float
    pixels: int = 0  # by its header
    is_large: bool = False  # it goes alone: see service.batching.large_images

    def is_wanted(self, now: float) -> bool:
        """Return whether the caller still waits and the deadline is ahead."""
        return not self.request.is_done and self.request.deadline > now

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


@dataclass(slots=True, eq=False)
class Batch:
    """Items that go to the backend together."""

    items: Sequence[Item]
    reason: CloseReason
    limit: int  # of items, when it was formed
    is_repeated: bool = False  # sent again unchanged, because its worker died
    phase: Phase = "formed"
    service_seconds: float = 0.0  # expected, once it is in flight
    round_trip_seconds: float = 0.0  # likewise
    sent_at: float = 0.0
    trace: BatchTrace | None = None  # while it is in flight, if one of its requests is traced
    is_large: bool = field(init=False)  # whether it is one large image

    def __post_init__(self) -> None:
        self.is_large = self.items[0].is_large

    def send(self, target: Target, now: float) -> BatchOptions:
        """Record that the batch goes to the backend; return what it asks the backend for."""
        self.sent_at = now
        top_k = 1
        waits: dict[InferenceRequest, Wait] = {}
        for item in self.items:
            request = item.request
            request.sent_at, top_k = now, max(top_k, request.top_k)
            if request.span is not None:
                waits.setdefault(request, (request.span, item.queued_at))
        if not waits:
            return BatchOptions(top_k, is_large=self.is_large)
        self.trace = BatchTrace(target, list(waits.values()), len(self.items), now)
        return BatchOptions(top_k, headers=self.trace.span.headers(), is_large=self.is_large)

    def check(self, answer: BatchAnswer, num_classes: int) -> None:
        """Raise BackendFailed for an answer with a result too many or too few, or a class that the model lacks."""
        if len(answer.results) != len(self.items):
            raise BackendFailed(f"{len(answer.results)} results for a batch of {len(self.items)}")
        for result in answer.results:
            if isinstance(result, Ranking):
                for index, _ in result.top_k:
                    if index >= num_classes:
                        raise BackendFailed(f"class {index} of a model that has {num_classes}")

    def deliver(self, answer: BatchAnswer, seconds: float) -> None:
        """Give the items their results, after a round trip of `seconds`."""
        times = BatchTimes(self.sent_at, seconds, answer.decode_seconds, answer.compute_seconds)
        for request in {item.request for item in self.items}:
            request.add_batch(len(self.items), self.limit, self.reason, times)
        for item, result in zip(self.items, answer.results, strict=True):
            item.answer(result, self.sent_at)

    def fail(self, error: GatewayError) -> None:
        """Give the items an error instead of results."""
        for item in self.items:
            item.fail(error)

    def end_trace(self, now: float, answer: BatchAnswer | None, error: str | None = None) -> None:
        """Record the batch's spans with its answer, or with the code of its error."""
        if self.trace is not None:
            trace, self.trace = self.trace, None
            trace.end(now, self.limit, self.reason, answer, error)

    def wanted_items(self, now: float) -> list[Item]:
        """Return the items whose callers still wait."""
        return [item for item in self.items if item.is_wanted(now)]
