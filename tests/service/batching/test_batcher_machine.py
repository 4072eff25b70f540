"""The batcher as a state machine: its promises hold for any order of what callers and the backend do.

Every live caller gets exactly one answer, its own. Clients that wait are served by their shares, and of each the most
urgent items first. Large images go alone, on half of the workers. Bounds hold. Nothing is left over.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import invariant, precondition, rule

from service.batching.request import InferenceRequest
from service.domain.backend import BatchAnswer, Priority, Ranking
from service.domain.caller import Caller as Client
from service.errors.gateway import (
    BackendError,
    BackendFailed,
    BackendTimeout,
    BackendUnavailable,
    CircuitOpen,
    DeadlineExceeded,
    Draining,
    GatewayError,
    WorkerDied,
)
from service.errors.overload import DeadlineUnreachable, QueueFull, ShareExceeded
from tests.service.batching.desk import LARGE, POISON, Caller, PendingBatch, result_of
from tests.service.batching.watched_batcher import LIMITS, WatchedBatcher

ERRORS: tuple[BackendError, ...] = (BackendUnavailable("gone"), BackendTimeout(1000), WorkerDied("dead"))


class BatcherMachine(WatchedBatcher):
    # What callers do

    @rule(
        sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
        large=st.sets(st.integers(0, 15)),
        deadline=st.sampled_from([0.02, 0.1, 1.0, 10.0]),
        priority=st.sampled_from(["normal", "normal", "low"]),
        poisoned=st.booleans(),
        data=st.data(),
    )
    def submit(
        self,
        sizes: list[int],
        large: set[int],
        deadline: float,
        priority: Priority,
        poisoned: bool,
        data: st.DataObject,
    ) -> None:
        client = data.draw(st.sampled_from(self.clients))
        payloads = []
        for size in sizes:
            self.num_sent += 1
            payloads.append(str(self.num_sent).encode() + b"x" * size)
        if poisoned:
            payloads[-1] = POISON + payloads[-1]
        payloads = [LARGE + payload if index in large else payload for index, payload in enumerate(payloads)]
        num_waiting, was_idle = self.batcher._queue.num_items, not self.desk.batches
        wanted = self.wanted_bytes()
        parts = {each: self.part(each) for each in self.clients}
        part = self.part(client, len(payloads), sum(map(len, payloads)))
        live = [caller for caller in self.callers if not caller.request.is_done]

        def step() -> None:
            deadline_at = self.now + deadline
            request = InferenceRequest(len(payloads), 1, deadline_at, lambda: None, priority, caller=client)
            caller = Caller(request, payloads)
            self.callers.append(caller)
            try:
                self.batcher.submit(request, payloads)
            except (QueueFull, ShareExceeded, DeadlineUnreachable, CircuitOpen, Draining) as error:
                caller.refused_with = error
                request.end(error)

        self.run(step)
        refusal = self.callers[-1].refused_with
        for caller in live:
            if isinstance(caller.request.error, ShareExceeded):  # it was pushed out, for somebody who has less
                assert refusal is None
                assert parts[caller.request.caller] > part
        if isinstance(refusal, QueueFull | ShareExceeded):
            num_wanted, num_bytes = wanted
            too_many = num_wanted + len(payloads) > LIMITS.max_queue_items
            assert too_many or num_bytes + sum(map(len, payloads)) > LIMITS.max_queue_bytes
            assert refusal.retry_after_seconds >= 1
            others = [each for each in self.clients if each is not client and parts[each]]
            if isinstance(refusal, ShareExceeded):
                assert part > 1 / sum(each.share for each in (client, *others))
                assert others
        elif isinstance(refusal, DeadlineUnreachable):
            assert not was_idle or num_waiting, "an idle backend must be asked, or nothing is ever learnt again"
            assert refusal.retry_after_seconds >= 1
        assert isinstance(refusal, Draining) == self.closed

    def wanted_bytes(self) -> tuple[int, int]:
        items = [item for item in self.batcher._queue if item.is_wanted(self.now)]
        return len(items), sum(len(item.payload) for item in items)

    def part(self, client: Client, num_items: int = 0, num_bytes: int = 0) -> float:
        """Return the part of the queue that a client has with so much more, divided by its share."""
        items = [item for item in self.batcher._queue if item.is_wanted(self.now) and item.request.caller is client]
        num_items += len(items)
        num_bytes += sum(len(item.payload) for item in items)
        return max(num_items / LIMITS.max_queue_items, num_bytes / LIMITS.max_queue_bytes) / client.share

    @precondition(lambda self: self.callers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from(self.callers))
        self.run(caller.request.end)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.05, 0.6, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(lambda: self.advance(seconds))

    def advance(self, seconds: float) -> None:
        """Move the clock and fire the timers: the batcher's own and the callers' deadlines."""
        self.now += seconds
        self.alarms.ring(self.now)
        for caller in self.callers:
            if caller.request.deadline <= self.now:
                caller.request.end(DeadlineExceeded(1))

    # What the backend does

    @precondition(lambda self: self.desk.batches)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 0.001, 0.01, 0.5]))
    def answer(self, data: st.DataObject, seconds: float) -> None:
        batch = data.draw(st.sampled_from(self.desk.batches))
        self.run(lambda: self.settle(batch, seconds))

    def settle(self, batch: PendingBatch, seconds: float) -> None:
        self.advance(seconds)
        if any(POISON in item for item in batch.items):
            batch.answer.set_exception(BackendFailed("the handler raised"))
        else:
            batch.answer.set_result(BatchAnswer([result_of(item) for item in batch.items], 0.0, seconds))

    @precondition(lambda self: self.desk.batches)
    @rule(data=st.data(), error=st.sampled_from(ERRORS))
    def fail(self, data: st.DataObject, error: BackendError) -> None:
        batch = data.draw(st.sampled_from(self.desk.batches))
        self.run(lambda: batch.answer.set_exception(error))

    @precondition(lambda self: self.desk.batches)
    @rule(data=st.data())
    def break_a_promise(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.desk.batches))
        self.run(lambda: batch.answer.set_result(BatchAnswer([], 0.0, 0.0)))

    @precondition(lambda self: not self.closed and len(self.callers) > 3)
    @rule()
    def close(self) -> None:
        self.closed = True
        self.loop.run_until_complete(self.batcher.drain(0))
        assert not self.desk.batches

    # What always holds

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "batcher"):
            return
        queue = self.batcher._queue
        assert queue.num_items == len(list(queue)) <= LIMITS.max_queue_items
        assert queue.num_bytes == sum(len(item.payload) for item in queue) <= LIMITS.max_queue_bytes
        assert queue.num_large == sum(item.is_large for item in queue)
        assert queue.large_pixels == sum(item.pixels for item in queue if item.is_large)
        assert len(self.desk.batches) == len(self.batcher._in_flight.batches) <= self.num_slots
        for items in self.desk.taken:
            assert 1 <= len(items) <= LIMITS.max_batch_size
            assert len(items) == 1 or sum(map(len, items)) <= LIMITS.max_batch_bytes

    @invariant()
    def nothing_waits_beside_a_free_worker(self) -> None:
        if not hasattr(self, "batcher") or self.batcher._circuit.state != "closed":
            return
        if len(self.desk.batches) < self.num_workers:
            assert not self.waiting(is_large=False)
            assert not self.waiting(is_large=True) or self.num_large() >= self.most_large()

    @invariant()
    def the_queue_is_in_order(self) -> None:
        if hasattr(self, "batcher"):
            for client in self.clients:
                items = [item for item in self.batcher._queue if item.request.caller is client and not item.is_large]
                order = [(item.request.priority == "normal", -item.request.deadline, -item.queued_at) for item in items]
                assert order == sorted(order)

    @invariant()
    def answers_are_ones_own_and_come_once(self) -> None:
        for caller in self.callers:
            request = caller.request
            missing = 0
            for payload, result in zip(caller.payloads, request.results, strict=True):
                if result is None:
                    missing += 1
                elif isinstance(result, Ranking):
                    assert result == result_of(payload)
                    assert POISON not in payload
                else:
                    assert isinstance(result, GatewayError)
            assert request.num_missing == missing
            if missing == 0:
                assert request.is_done

    def teardown(self) -> None:
        if not hasattr(self, "batcher"):
            self.loop.close()
            return
        for _ in range(1000):  # answer what is left, however often it is split
            if not self.desk.batches:
                break
            self.run(lambda: self.settle(self.desk.batches[0], 0.001))
        self.loop.run_until_complete(self.batcher.drain(0))
        self.bounds_hold()
        self.answers_are_ones_own_and_come_once()
        assert not self.batcher._tasks
        assert not self.batcher._former.retries
        assert self.batcher._queue.num_items == len(self.batcher._in_flight.batches) == 0
        assert not self.alarms.times()
        assert not self.batcher._timers
        for caller in self.callers:
            assert caller.request.is_done, "a caller was forgotten"
        self.loop.close()


TestBatcher = BatcherMachine.TestCase
TestBatcher.settings = settings(max_examples=400, stateful_step_count=20, deadline=None)
