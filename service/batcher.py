"""One queue per model version: a free slot takes what waits, up to the limit, and answers live callers.

Work-conserving: nothing waits while a slot is free, so an idle service adds no delay, and a busy one fills its
batches by itself because images gather while all slots are taken.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.backend import Backend, BatchAnswer, BatchOptions, ItemResult, Target
from service.errors import BackendError, BackendFailed, Draining, GatewayError, InternalError, QueueFull
from service.metrics import CloseReason, VersionMetrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one batch and one queue may hold, and how long a batch may take."""

    max_batch_size: int
    max_batch_bytes: int
    max_queue_items: int
    max_queue_bytes: int
    backend_timeout_ms: int

    def __post_init__(self) -> None:
        if min(self.max_batch_size, self.max_batch_bytes, self.max_queue_items, self.max_queue_bytes) < 1:
            raise ValueError(f"every limit must be at least 1: {self}")


@dataclass(slots=True, eq=False)
class Call:
    """One caller's images: filled result by result, done when the last is in, dead once its future is cancelled."""

    num_items: int
    top_k: int
    deadline: float  # time.monotonic(); the event loop's own clock ticks in milliseconds
    future: "asyncio.Future[None]"
    results: list[ItemResult | GatewayError | None] = field(init=False)
    num_missing: int = field(init=False)
    queue_seconds: float = 0.0  # of its images, the longest
    compute_seconds: float = 0.0  # of its batches, the longest round trip
    largest_batch: int = 0
    num_batches: int = 0

    def __post_init__(self) -> None:
        self.results = [None] * self.num_items
        self.num_missing = self.num_items

    def answer(self, index: int, result: ItemResult | GatewayError) -> None:
        """Put in one image's result; the last one wakes the caller, if it is still there."""
        self.results[index] = result
        self.num_missing -= 1
        if not self.num_missing and not self.future.done():
            self.future.set_result(None)


@dataclass(slots=True, eq=False)
class Item:
    """One image in the queue."""

    payload: bytes
    call: Call
    index: int  # of its place in the call
    queued_at: float


class Batcher:
    """Gathers the images of one version into batches and keeps the backend's slots busy."""

    def __init__(self, target: Target, backend: Backend, limits: BatchLimits, metrics: VersionMetrics) -> None:
        self.target = target
        self._backend = backend
        self._limits = limits
        self._metrics = metrics
        self._queue: deque[Item] = deque()
        self._queue_bytes = 0
        self._num_slots = 1
        self._running: set[asyncio.Task[None]] = set()
        self._fill_scheduled = False
        self._draining = False
        metrics.batch_limit.set(limits.max_batch_size)

    def set_slots(self, num_slots: int) -> None:
        """Allow `num_slots` batches in flight."""
        self._num_slots = num_slots
        self._schedule_fill()

    def submit(self, call: Call, payloads: Sequence[bytes | None]) -> None:
        """Queue the call's images in one piece; a None has its result already. Wait on `call.future` for the rest.

        Raises:
            Draining: the batcher takes nothing more.
            QueueFull: the images do not fit beside those that wait; none was queued.
        """
        if self._draining:
            raise Draining
        now = time.monotonic()
        items = [Item(payload, call, i, now) for i, payload in enumerate(payloads) if payload is not None]
        num_bytes = sum(len(item.payload) for item in items)
        if not self._fits(len(items), num_bytes):
            self._drop_dead()  # callers that left must not keep others out
            if not self._fits(len(items), num_bytes):
                raise QueueFull(self.target.model, self.target.version, len(self._queue))
        self._queue.extend(items)
        self._queue_bytes += num_bytes
        self._metrics.queue_depth.set(len(self._queue))
        self._schedule_fill()

    def fail_waiting(self, error: GatewayError) -> None:
        """Answer everything that waits with `error`; batches in flight are left alone."""
        waiting, self._queue = self._queue, deque()
        self._queue_bytes = 0
        self._metrics.queue_depth.set(0)
        for item in waiting:
            item.call.answer(item.index, error)

    async def drain(self, seconds: float) -> None:
        """Take nothing more, finish what waits and runs within `seconds`, then cancel and answer the rest."""
        self._draining = True
        deadline = time.monotonic() + seconds
        self._fill()
        while self._running:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            await asyncio.wait(self._running, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        self.fail_waiting(Draining())
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _fits(self, num_items: int, num_bytes: int) -> bool:
        return (
            len(self._queue) + num_items <= self._limits.max_queue_items
            and self._queue_bytes + num_bytes <= self._limits.max_queue_bytes
        )

    def _drop_dead(self) -> None:
        self._queue = deque(item for item in self._queue if not item.call.future.done())
        self._queue_bytes = sum(len(item.payload) for item in self._queue)

    def _schedule_fill(self) -> None:
        # At the end of this turn of the event loop, so that requests which arrived together share a batch.
        if not self._fill_scheduled:
            self._fill_scheduled = True
            asyncio.get_running_loop().call_soon(self._fill)

    def _fill(self) -> None:
        self._fill_scheduled = False
        while self._queue and len(self._running) < self._num_slots:
            batch, reason = self._take()
            if batch:
                self._metrics.close[reason].inc()
                task = asyncio.get_running_loop().create_task(self._run(batch))
                self._running.add(task)
                task.add_done_callback(self._ended)
        self._metrics.queue_depth.set(len(self._queue))
        self._metrics.in_flight_batches.set(len(self._running))

    def _take(self) -> tuple[list[Item], CloseReason]:
        """Return the next batch of items whose callers still wait, and why it holds no more."""
        now = time.monotonic()
        batch: list[Item] = []
        num_bytes = 0
        while self._queue:
            item = self._queue[0]
            alive = not item.call.future.done() and item.call.deadline > now
            full = len(batch) == self._limits.max_batch_size or (
                batch and num_bytes + len(item.payload) > self._limits.max_batch_bytes
            )
            if alive and full:
                return batch, "full"
            self._queue.popleft()
            self._queue_bytes -= len(item.payload)
            if alive:
                batch.append(item)
                num_bytes += len(item.payload)
        return batch, "drain" if self._draining else "idle"

    async def _run(self, batch: list[Item]) -> None:
        started = time.monotonic()
        options = BatchOptions(top_k=max(item.call.top_k for item in batch))
        self._metrics.batch_size.observe(len(batch))
        try:
            answer = await self._ask(batch, options)
        except BackendError as error:
            self._metrics.backend_error(error.code)
            results: Sequence[ItemResult | GatewayError] = [error] * len(batch)
        except BaseException as error:
            why = Draining() if isinstance(error, asyncio.CancelledError) else InternalError()
            for item in batch:
                item.call.answer(item.index, why)
            raise
        else:
            results = answer.results
            self._metrics.compute_seconds.observe(time.monotonic() - started)
            self._metrics.batches.inc()
        self._metrics.items.inc(len(batch))
        compute_seconds = time.monotonic() - started
        for call in {item.call for item in batch}:
            call.num_batches += 1
            call.largest_batch = max(call.largest_batch, len(batch))
            call.compute_seconds = max(call.compute_seconds, compute_seconds)
        for item, result in zip(batch, results, strict=True):
            item.call.queue_seconds = max(item.call.queue_seconds, started - item.queued_at)
            item.call.answer(item.index, result)

    async def _ask(self, batch: list[Item], options: BatchOptions) -> BatchAnswer:
        timeout_seconds = self._limits.backend_timeout_ms / 1000
        answer = await self._backend.predict(self.target, [item.payload for item in batch], options, timeout_seconds)
        if len(answer.results) != len(batch):
            raise BackendFailed(f"{len(answer.results)} results for a batch of {len(batch)}")
        return answer

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Our own mistake, or a backend that broke its promise; its callers were told, everyone else goes on.
            logger.error("a batch of %s failed unexpectedly", self.target, exc_info=error)
        self._fill()
