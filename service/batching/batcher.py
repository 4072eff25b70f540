"""The batcher of one model version: its queue, its batches in flight, and the answers to its callers.

It is work-conserving: no item waits while a worker is free. An idle service adds no delay, and a busy one fills its
batches by itself, because items gather while all workers are busy.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from service.batching.admission import Admission
from service.batching.batch_former import PREFETCH_SECONDS, BatchFormer, InFlight
from service.batching.circuit_breaker import CircuitBreaker
from service.batching.large_images import LargeImages
from service.batching.latency_model import LatencyModel
from service.batching.profile_request import ProfileRequest
from service.batching.queue import BatchLimits, ItemQueue
from service.batching.request import Batch, InferenceRequest
from service.domain.backend import MOST_CLASSES, Backend, BatchAnswer, BatchOptions, Target
from service.errors.admin import ProfileActive
from service.errors.gateway import BackendError, CircuitOpen, Draining, GatewayError, InternalError
from service.telemetry.version_metrics import BatcherGauges, VersionMetrics

logger = logging.getLogger(__name__)

# A batch waits up to this many further turns of the event loop, microseconds each, while every turn brings more items.
MAX_EXTRA_TURNS = 4
# No prefetch behind longer batches: it would save too little for the items that miss the next batch.
PREFETCH_MAX_SERVICE_SECONDS = 0.016


def _call_later(seconds: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, callback, *args)


class Batcher:
    """Gathers one version's items into batches and keeps the backend's workers busy."""

    def __init__(
        self,
        target: Target,
        backend: Backend,
        limits: BatchLimits,
        metrics: VersionMetrics,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[..., asyncio.TimerHandle] = _call_later,
    ) -> None:
        self.target = target
        self.num_calls = 0  # requests admitted
        self.num_classes = MOST_CLASSES  # of the model, once its contract is known
        self._backend = backend
        self._timeout_seconds = limits.backend_timeout_ms / 1000
        self._metrics = metrics
        self._clock = clock
        self._call_later = call_later
        queue = self._queue = ItemQueue(limits)
        in_flight = self._in_flight = InFlight()
        model = self._model = LatencyModel()
        large = self._large = LargeImages()
        former = self._former = BatchFormer(queue, in_flight, model, large, limits)
        circuit = self._circuit = CircuitBreaker(clock)
        self._admission = Admission(target, limits, queue, in_flight, model, large, former)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[Batch, asyncio.TimerHandle] = {}
        self._num_undelivered = 0  # batches answered whose callers are not
        self._is_fill_scheduled = False
        self._is_draining = False
        self._profile: ProfileRequest | None = None
        self._observe_answer: Callable[[BatchAnswer], None] = lambda _: None
        self.gauges = BatcherGauges(
            num_waiting=lambda: queue.num_items,
            num_running=lambda: len(in_flight.batches),
            oldest_age=lambda: queue.oldest_age(clock()),
            circuit_state=lambda: circuit.state,
            batch_limit=former.objective_limit,
            fixed_seconds=lambda: model.fixed_seconds,
            per_item_seconds=lambda: model.per_item_seconds if model.is_known else 0.0,
        )

    def set_capacity(self, num_workers: int, num_slots: int) -> None:
        """Set how many workers answer and how many batches may be in flight; closes the circuit."""
        self._in_flight.set_capacity(num_workers, num_slots)
        self._circuit.record_success()
        self._schedule_fill()

    def observe_answers(self, observe: Callable[[BatchAnswer], None]) -> None:
        """Have `observe` called with every batch's answer, after its callers have theirs."""
        self._observe_answer = observe

    @contextmanager
    def profiled(self, order: ProfileRequest) -> Iterator[None]:
        """Send batches through `order` inside this context; raises ProfileActive if there is an order already."""
        if self._profile is not None:
            raise ProfileActive(str(self.target))
        self._profile = order
        try:
            yield
        finally:
            self._profile = None

    @property
    def is_cut_off(self) -> bool:
        """Return whether the circuit is open, so that every request is refused for a moment."""
        return self._circuit.num_failures > 0 and self._circuit.state == "open"

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is queued or in flight."""
        return not (self._in_flight.batches or self._has_waiting)

    def submit(self, request: InferenceRequest, payloads: Sequence[bytes | None]) -> None:
        """Queue all items of a request, or none; None stands for an item that is answered already.

        Raises:
            Draining: the batcher takes no more requests.
            CircuitOpen: the backend does not answer at present.
            QueueFull: the items do not fit into the queue.
            ShareExceeded: nor do they, and their caller has its share of it.
            DeadlineUnreachable: the work ahead leaves too little time.
        """
        if self._is_draining:
            raise Draining
        if self.is_cut_off:
            raise CircuitOpen(str(self.target), max(math.ceil(self._circuit.seconds_left()), 1))
        now = self._clock()
        items = self._large.items(request, payloads, now)
        num_bytes = sum([len(item.payload) for item in items])
        leaving: Sequence[InferenceRequest] = ()
        if not self._queue.has_room(len(items), num_bytes):
            leaving = self._admission.make_room(request, len(items), num_bytes, now)
        if self._in_flight.batches:  # an idle backend is always asked: only that can correct a wrong forecast
            self._admission.require_time(request, items, now)
        if leaving:
            self._admission.push_out(leaving)
        self._large.note(items)
        self._queue.push(items, num_bytes)
        self.num_calls += 1
        self._schedule_fill()

    def fail_waiting(self, error: GatewayError) -> None:
        """Answer every queued item with `error`; batches in flight go on."""
        for item in self._former.clear():
            item.fail(error)

    async def drain(self, seconds: float) -> None:
        """Take no more requests, finish the present ones within `seconds`, then cancel and answer the rest."""
        self._is_draining = True
        deadline = time.monotonic() + seconds
        self._fill()
        while self._tasks and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        self.fail_waiting(Draining())
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _has_waiting(self) -> bool:
        return bool(self._queue.num_items or self._former.retries)

    def _schedule_fill(self) -> None:
        """Fill at the end of this turn of the event loop, so that requests which arrived together share a batch."""
        if not self._is_fill_scheduled:
            self._is_fill_scheduled = True
            asyncio.get_running_loop().call_soon(self._fill_when_quiet, self._queue.num_items, MAX_EXTRA_TURNS)

    def _fill_when_quiet(self, num_before: int, turns_left: int) -> None:
        """Fill, or wait one more turn if the last one brought more items than the `num_before` of then."""
        num_waiting = self._queue.num_items
        if num_waiting > num_before and turns_left and not self._former.has_full_batch:
            asyncio.get_running_loop().call_soon(self._fill_when_quiet, num_waiting, turns_left - 1)
        else:
            self._fill()

    def _fill(self) -> None:
        """Send batches as long as there are items and free workers or slots for them."""
        self._is_fill_scheduled = False
        while self._has_waiting and self._may_send() and (batch := self._next()) is not None:
            self._metrics.close[batch.reason].inc()
            self._in_flight.begin(batch, self._former.seconds(batch))
            if batch.phase == "running":
                self._expect_end(batch)
            self._tasks.add(task := asyncio.get_running_loop().create_task(self._run(batch)))
            task.add_done_callback(partial(self._task_ended, batch))

    def _next(self) -> Batch | None:
        return self._former.next(self._clock(), is_draining=self._is_draining)

    def _may_send(self) -> bool:
        in_flight, num_batches = self._in_flight, len(self._in_flight.batches)
        if self._circuit.num_failures and (state := self._circuit.state) != "closed":
            return state == "half_open" and not num_batches
        if num_batches < in_flight.num_workers:
            return True
        # All workers are busy: one more batch may wait for them if it cannot grow, or if a worker is soon free.
        # Any other batch would leave too early, and items that arrive meanwhile would miss it.
        return num_batches < in_flight.num_slots and (in_flight.is_worker_soon_free or self._former.has_full_batch)

    async def _run(self, batch: Batch) -> None:
        self._metrics.batch_size.observe(len(batch.items))
        options = batch.send(self.target, self._clock())
        try:
            answer = await self._ask(batch, options)
        except BackendError as error:
            self._fail(batch, error.without_traceback())
            return
        seconds = self._clock() - batch.sent_at
        self._num_undelivered += 1
        is_alone = self._num_undelivered == len(self._in_flight.batches) == 1 and not self._has_waiting
        if is_alone:
            self._deliver(batch, answer, seconds)
        self._learn(batch, answer, seconds)
        self._end(batch)
        self._fill()
        if not is_alone:
            # After the first step of the task that `_fill` made: the worker's next batch goes first.
            asyncio.get_running_loop().call_soon(self._deliver, batch, answer, seconds)

    async def _ask(self, batch: Batch, options: BatchOptions) -> BatchAnswer:
        payloads = [item.payload for item in batch.items]
        predict = self._backend.predict if self._profile is None else self._profile.predict
        answer = await predict(self.target, payloads, options, self._timeout_seconds)
        batch.check(answer, self.num_classes)
        return answer

    def _learn(self, batch: Batch, answer: BatchAnswer, seconds: float) -> None:
        if self._circuit.num_failures:
            self._circuit.record_success()
        if answer.profile is None:  # a profile takes time that the next batch will not take
            # The handler's own time, so that waiting inside the backend does not count as work.
            self._former.learn(batch, answer.decode_seconds + answer.compute_seconds, seconds)
        self._metrics.compute_seconds.observe(seconds)
        self._metrics.batches.inc()
        self._metrics.items.inc(len(batch.items))

    def _deliver(self, batch: Batch, answer: BatchAnswer, seconds: float) -> None:
        self._num_undelivered -= 1
        first = batch.items[0].request
        if answer.profile is None and first.expected_seconds and not batch.is_large:
            self._model.learn_wait(first.expected_seconds, batch.sent_at + seconds - first.submitted_at)
        batch.deliver(answer, seconds)
        self._observe_answer(answer)
        if batch.trace is not None:
            batch.end_trace(batch.sent_at + seconds, answer)

    def _fail(self, batch: Batch, error: BackendError) -> None:
        """Try a failed batch again if one of its items may be the cause; else answer its callers with `error`."""
        now = self._clock()
        self._metrics.backend_error(error.code)
        batch.end_trace(now, None, error.code)
        self._end(batch)
        if error.is_outage:
            self._circuit.record_failure()
        for item in batch.wanted_items(now):
            item.requeue(now)
        if self._circuit.state == "open":
            self.fail_waiting(error)
        if self._circuit.state == "open" or not self._former.retry(batch, error, now):
            self._metrics.items.inc(len(batch.items))
            batch.fail(error)
        self._fill()

    def _task_ended(self, batch: Batch, task: asyncio.Task[None]) -> None:
        """Answer the callers of a batch whose task was cancelled, or failed by a mistake of ours or the backend's."""
        self._tasks.discard(task)
        cause = None if task.cancelled() else task.exception()
        if cause is not None:
            logger.error("a batch of %s failed unexpectedly", self.target, exc_info=cause)
        if batch.phase != "ended":
            self._end(batch)
            error = Draining() if task.cancelled() else InternalError()
            batch.end_trace(self._clock(), None, error.code)
            batch.fail(error)
            self._fill()

    def _end(self, batch: Batch) -> None:
        """Free the batch's slot."""
        if (timer := self._timers.pop(batch, None)) is not None:
            timer.cancel()
        if (following := self._in_flight.end(batch, self._queue.num_usual)) is not None:
            self._expect_end(following)

    def _expect_end(self, batch: Batch) -> None:
        """Set a timer for shortly before a batch that a worker has begun should be back."""
        if PREFETCH_SECONDS < batch.service_seconds <= PREFETCH_MAX_SERVICE_SECONDS:
            seconds = batch.service_seconds - PREFETCH_SECONDS
            self._timers[batch] = self._call_later(seconds, self._prefetch_next, batch)

    def _prefetch_next(self, batch: Batch) -> None:
        """Mark the batch as finishing, so that the next one may leave before it is back."""
        self._in_flight.mark_finishing(batch)
        # A batch that takes twice as long as expected may be stuck, and so may a batch sent after it.
        seconds = PREFETCH_SECONDS + batch.service_seconds
        self._timers[batch] = self._call_later(seconds, self._in_flight.mark_overdue, batch)
        if self._queue.num_items:  # the event loop fires timers before it reads sockets: give those one more turn
            asyncio.get_running_loop().call_soon(self._fill_when_quiet, -1, MAX_EXTRA_TURNS)
