"""One queue per model version: a free slot takes what waits, up to the limit, and answers live callers.

Work-conserving: nothing waits while a slot is free, so an idle service adds no delay, and a busy one fills its
batches by itself because images gather while all slots are taken.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from service.batching.admission import Admission
from service.batching.batch_former import Batch, BatchFormer
from service.batching.batch_trace import send
from service.batching.circuit_breaker import CircuitBreaker
from service.batching.latency_model import LatencyModel
from service.batching.prefetch import Alarm, Prefetch
from service.batching.profile_order import ProfileOrder
from service.batching.queue import BatchLimits, BatchTimes, InferenceRequest, Item, ItemQueue
from service.domain.backend import Backend, BatchAnswer, Target
from service.errors.gateway import (
    BackendError,
    BackendFailed,
    CircuitOpen,
    Draining,
    GatewayError,
    InternalError,
)
from service.telemetry.version_metrics import VersionMetrics

logger = logging.getLogger(__name__)

# Turns of the event loop, microseconds each, that a batch waits at most while every one of them brings more images.
MOST_TURNS = 4


class Batcher:
    """Gathers the images of one version into batches and keeps the backend's slots busy."""

    def __init__(
        self,
        target: Target,
        backend: Backend,
        limits: BatchLimits,
        metrics: VersionMetrics,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[..., Alarm] | None = None,  # the event loop's, unless told otherwise
    ) -> None:
        self.target = target
        self._backend = backend
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._queue = ItemQueue()
        self._retries: deque[Batch] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_running = 0
        self._num_undelivered = 0  # answers that came and have not gone out
        self._num_workers = self._num_slots = 1
        self._latency_model = LatencyModel(limits.max_batch_size, limits.latency_objective_ms)
        self._former = BatchFormer(self._queue, self._latency_model, limits)
        self._admission = Admission(target, self._queue, self._latency_model, limits)
        self._prefetch = Prefetch(self._latency_model, self._fill_soon, call_later)
        self._circuit = CircuitBreaker(clock)
        self._fill_scheduled = False
        self._draining = False
        self.num_calls = 0  # that were let in
        self.watch: Callable[[BatchAnswer], None] = lambda _: None  # told of answers that went out
        self.profile: ProfileOrder | None = None  # while one is taken
        cost = self._latency_model.cost
        metrics.watch(
            num_waiting=lambda: len(self._queue),
            num_running=lambda: self._num_running,
            oldest_age=lambda: self._queue.oldest_age(clock()),
            circuit_state=lambda: self._circuit.state,
            batch_limit=lambda: self._latency_model.limit,
            fixed_seconds=lambda: cost.fixed_seconds,
            per_item_seconds=lambda: cost.per_item_seconds if cost.is_known else 0.0,
        )

    def set_capacity(self, num_workers: int, num_slots: int) -> None:
        """Expect `num_workers` workers that answer, and allow `num_slots` batches in flight."""
        self._num_workers, self._num_slots = num_workers, num_slots
        self._latency_model.set_capacity(num_workers, num_slots)
        self._circuit.succeeded()
        self._schedule_fill()

    @property
    def is_cut_off(self) -> bool:
        """Return whether the circuit is open: nothing is taken for a moment."""
        return self._circuit.state == "open"

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits and nothing runs."""
        return not (self._num_running or self._queue)

    def submit(self, call: InferenceRequest, payloads: Sequence[bytes | None]) -> None:
        """Queue the call's images in one piece; a None has its result already. The call is told.

        Raises:
            Draining: the batcher takes nothing more.
            CircuitOpen: the backend does not answer at present.
            QueueFull: the images do not fit beside those that wait; none was queued.
            DeadlineUnreachable: so much is to be done before them that they cannot be answered in time.
        """
        if self._draining:
            raise Draining
        if self._circuit.state == "open":
            raise CircuitOpen(str(self.target), max(math.ceil(self._circuit.seconds_left()), 1))
        now = self._clock()
        items = [Item(payload, call, i, now) for i, payload in enumerate(payloads) if payload is not None]
        num_bytes = sum([len(item.payload) for item in items])
        self._admission.require_room(len(items), num_bytes, now)
        if self._num_running:  # else nothing is ahead; and what is believed of the backend only asking it can correct
            self._admission.require_time(call, len(items), now)
        self._queue.push(items, num_bytes)
        self._latency_model.see(len(self._queue))
        self.num_calls += 1
        self._schedule_fill()

    def fail_waiting(self, error: GatewayError) -> None:
        """Answer everything that waits with `error`; batches in flight are left alone."""
        waiting = [*self._queue.clear(), *(item for batch in self._retries for item in batch.items)]
        self._retries.clear()
        for item in waiting:
            item.call.answer(item.index, error)

    async def drain(self, seconds: float) -> None:
        """Take nothing more, finish what waits and runs within `seconds`, then cancel and answer the rest."""
        self._draining = True
        deadline = time.monotonic() + seconds
        self._fill()
        while self._tasks:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            await asyncio.wait(self._tasks, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
        self.fail_waiting(Draining())
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _schedule_fill(self) -> None:
        # Not before the end of this turn of the event loop, so that requests which arrived together share a batch.
        if not self._fill_scheduled:
            self._fill_scheduled = True
            asyncio.get_running_loop().call_soon(self._fill_when_quiet, len(self._queue), MOST_TURNS)

    def _fill_when_quiet(self, num_seen: int, turns_left: int) -> None:
        """Fill, or wait for one more turn, since the last one brought more images: `num_seen` waited before it."""
        num_waiting = len(self._queue)
        if num_waiting > num_seen and turns_left and not self._former.has_full_batch:
            asyncio.get_running_loop().call_soon(self._fill_when_quiet, num_waiting, turns_left - 1)
        else:
            self._fill()

    def _fill_soon(self) -> None:
        """Fill, once what lies in the sockets has been read: the event loop rings its alarms before."""
        if self._queue:
            asyncio.get_running_loop().call_soon(self._fill_when_quiet, -1, MOST_TURNS)

    def _fill(self) -> None:
        self._fill_scheduled = False
        while (self._queue or self._retries) and self._may_send() and (batch := self._next()) is not None:
            self._metrics.close[batch.reason].inc()
            batch.expected = self._latency_model.begin(len(batch.items))
            self._prefetch.begin(batch, has_worker=self._num_running < self._num_workers)
            self._num_running += 1
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, batch))

    def _may_send(self) -> bool:
        state = self._circuit.state
        if state != "closed":
            return state == "half_open" and not self._num_running
        if self._num_running < self._num_workers:
            return True
        if self._num_running >= self._num_slots:
            return False
        # One more for the next worker that is free, so that it need not wait for us. Had it room left long before,
        # those that come until then would have to wait for the batch after it.
        return self._latency_model.is_worker_soon_free or self._former.has_full_batch

    def _next(self) -> Batch | None:
        """Return the next batch of images whose callers still wait; None if nobody does."""
        now = self._clock()
        while self._retries:
            batch = self._retries.popleft()
            batch.items = [item for item in batch.items if item.is_wanted(now)]
            if batch.items:
                return batch
        return self._former.next(now, self._draining)

    async def _run(self, batch: Batch) -> None:
        started = self._clock()
        self._metrics.batch_size.observe(len(batch.items))
        batch.trace = send(self.target, batch.items, started)
        try:
            answer = await self._ask(batch)
        except BackendError as error:
            self._metrics.backend_error(error.code)
            batch.end_trace(self._clock(), None, error.code)
            self._end(batch)
            self._retry_or_refuse(batch, error)
            self._fill()
            return
        seconds = self._clock() - started
        self._num_undelivered += 1
        if is_alone := self._num_undelivered == self._num_running == 1 and not (self._queue or self._retries):
            self._deliver(batch, answer, started, seconds)
        self._learn(batch, answer, seconds)
        self._end(batch)
        self._fill()
        if not is_alone:
            # The worker's next batch first: it goes out in the first step of a task that was made just now.
            asyncio.get_running_loop().call_soon(self._deliver, batch, answer, started, seconds)

    async def _ask(self, batch: Batch) -> BatchAnswer:
        payloads = [item.payload for item in batch.items]
        timeout_seconds = self._limits.backend_timeout_ms / 1000
        predict = self._backend.predict if self.profile is None else self.profile.predict
        answer = await predict(self.target, payloads, batch.options(), timeout_seconds)
        if len(answer.results) != len(payloads):
            raise BackendFailed(f"{len(answer.results)} results for a batch of {len(payloads)}")
        return answer

    def _end(self, batch: Batch) -> None:
        assert batch.expected is not None
        self._num_running -= 1
        self._prefetch.end(batch)
        self._latency_model.end(batch.expected)
        batch.expected = None

    def _ended(self, batch: Batch, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        cause = None if task.cancelled() else task.exception()
        if batch.expected is not None:  # cancelled, or a mistake of ours or of the backend
            self._end(batch)
            error: GatewayError = Draining() if task.cancelled() else InternalError()
            batch.end_trace(self._clock(), None, error.code)
            for item in batch.items:
                item.call.answer(item.index, error)
        elif cause is None:
            return  # it has filled what it left
        if cause is not None:
            logger.error("a batch of %s failed unexpectedly", self.target, exc_info=cause)
        self._fill()

    def _learn(self, batch: Batch, answer: BatchAnswer, seconds: float) -> None:
        assert batch.expected is not None
        self._circuit.succeeded()
        if answer.profile is None:  # which costs time that the next batch will not take
            # What the handler spent, so that waiting inside the backend is not taken for work.
            self._latency_model.learn(batch.expected, answer.decode_seconds + answer.compute_seconds, seconds)
        self._metrics.compute_seconds.observe(seconds)
        self._metrics.batches.inc()
        self._metrics.items.inc(len(batch.items))

    def _deliver(self, batch: Batch, answer: BatchAnswer, started: float, seconds: float) -> None:
        self._num_undelivered -= 1
        first = batch.items[0].call
        if answer.profile is None:
            self._latency_model.compare(first.foreseen_seconds, started + seconds - first.submitted_at)
        times = BatchTimes(started, seconds, answer.decode_seconds, answer.compute_seconds)
        for call in {item.call for item in batch.items}:
            call.note(len(batch.items), batch.limit, batch.reason, times)
        for item, result in zip(batch.items, answer.results, strict=True):
            item.call.queue_seconds = max(item.call.queue_seconds, started - item.queued_at)
            item.call.answer(item.index, result)
        self.watch(answer)
        batch.end_trace(started + seconds, answer)

    def _retry_or_refuse(self, batch: Batch, error: BackendError) -> None:
        """Try again in halves what one image may have spoilt for all; answer the others with `error`."""
        if error.is_outage:
            self._circuit.failed()
        now = self._clock()
        wanted = [item for item in batch.items if item.is_wanted(now)]
        for item in wanted:
            item.wait_again(now)
        if self._circuit.state == "open":
            self.fail_waiting(error)
        elif error.may_be_one_image and len(wanted) > 1:
            half = len(wanted) // 2
            self._retries += (Batch(wanted[:half], "split", half), Batch(wanted[half:], "split", len(wanted) - half))
            return
        elif error.may_be_one_image and error.is_outage and wanted and not batch.is_repeated:
            # It was alone with a worker that died, which may have had other reasons.
            self._retries.append(Batch(wanted, "split", len(wanted), is_repeated=True))
            return
        self._metrics.items.inc(len(batch.items))
        for item in batch.items:
            item.call.answer(item.index, error)
