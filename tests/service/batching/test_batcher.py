import asyncio
from functools import partial

import pytest

from service.batching.batcher import MOST_TURNS, Batcher
from service.batching.prefetch import LONGEST_SECONDS
from service.batching.queue import BatchLimits, InferenceRequest
from service.domain.backend import Ranking, Target
from service.errors.gateway import Draining, QueueFull
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import VersionMetrics
from tests.fake_backend import FakeBackend
from tests.service.limits import LIMITS, limits

pytestmark = pytest.mark.anyio

TARGET = Target("digits", "1.0")
FAR = float("inf")


def make(backend: FakeBackend, bounds: BatchLimits = LIMITS) -> Batcher:
    return Batcher(TARGET, backend, bounds, VersionMetrics(Metrics(), TARGET))


class Waiting(InferenceRequest):
    """A call that can be waited for."""

    def __init__(self, num_items: int) -> None:
        self.done = asyncio.Event()
        super().__init__(num_items, 1, FAR, self.done.set)


def call(num_items: int) -> Waiting:
    return Waiting(num_items)


async def test_an_idle_batcher_adds_no_delay_and_a_busy_one_gathers() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    backend.hold()
    first = call(1)
    batcher.submit(first, [b"class:0"])
    await backend.batches_arrived(1)
    others = [call(1) for _ in range(3)]
    for each in others:
        batcher.submit(each, [b"class:1"])
    backend.release()
    await asyncio.gather(first.done.wait(), *(each.done.wait() for each in others))
    assert [len(batch) for batch in backend.batches] == [1, 3]
    assert [each.largest_batch for each in others] == [3, 3, 3]
    assert first.results == [Ranking([(0, 1.0)])]


async def test_who_is_alone_is_answered_before_anything_else_is_done() -> None:
    batcher = make(FakeBackend())
    was_idle: list[bool] = []
    done = asyncio.Event()

    def ended() -> None:
        was_idle.append(batcher.is_idle)
        done.set()

    batcher.submit(InferenceRequest(1, 1, FAR, ended), [b"class:0"])
    await done.wait()
    assert was_idle == [False]
    await asyncio.sleep(0)
    assert batcher.is_idle


async def test_batches_that_come_back_together_are_answered_in_their_order() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    batcher.set_capacity(2, 2)
    backend.hold()
    order: list[int] = []
    done = asyncio.Event()

    def ended(number: int) -> None:
        order.append(number)
        if len(order) == 2:
            done.set()

    for number in range(2):
        batcher.submit(InferenceRequest(1, 1, FAR, partial(ended, number)), [b"class:0"])
    await backend.batches_arrived(2)
    backend.release()
    await done.wait()
    assert order == [0, 1]


async def test_a_batch_waits_some_turns_of_the_event_loop_while_each_brings_more() -> None:
    backend = FakeBackend()
    batcher = make(backend, limits(max_batch_size=16))
    calls = [call(1) for _ in range(10)]
    batcher.submit(calls[0], [b"class:0"])
    for each in calls[1:]:
        batcher.submit(each, [b"class:0"])
        await asyncio.sleep(0)  # one turn
    await asyncio.gather(*(each.done.wait() for each in calls))
    assert len(backend.batches[0]) == 2 + MOST_TURNS


async def test_as_many_batches_run_as_there_are_slots() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    batcher.set_capacity(2, 2)
    backend.hold()
    calls = [call(4) for _ in range(2)]
    for each in calls:
        batcher.submit(each, [b"class:0"] * 4)
    await backend.batches_arrived(2)
    assert backend.num_in_flight == 2
    backend.release()
    await asyncio.gather(*(each.done.wait() for each in calls))


async def test_idle_workers_share_what_came_at_once() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    batcher.set_capacity(2, 3)
    backend.hold()
    whole = call(4)
    batcher.submit(whole, [b"class:0"] * 4)
    await backend.batches_arrived(2)
    backend.release()
    await whole.done.wait()
    assert [len(batch) for batch in backend.batches] == [2, 2]
    assert (whole.close_reason, whole.batch_limit) == ("idle", 4)


async def test_a_batch_waits_at_a_busy_worker_only_when_it_is_full() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    batcher.set_capacity(1, 2)
    backend.hold()
    calls = [call(1) for _ in range(6)]
    batcher.submit(calls[0], [b"class:0"])
    await backend.batches_arrived(1)
    for each in calls[1:4]:
        batcher.submit(each, [b"class:1"])
    await asyncio.sleep(0.01)
    assert [len(batch) for batch in backend.batches] == [1]
    batcher.submit(calls[4], [b"class:1"])
    await backend.batches_arrived(2)
    batcher.submit(calls[5], [b"class:2"])
    backend.release()
    await asyncio.gather(*(each.done.wait() for each in calls))
    assert [len(batch) for batch in backend.batches] == [1, 4, 1]


async def busy_for(service_seconds: float, backend: FakeBackend) -> tuple[Batcher, list[Waiting]]:
    """Return a batcher whose only worker should be free after so long, but is not, and calls: one runs, one waits."""
    batcher = make(backend)
    batcher.set_capacity(1, 3)
    backend.service_seconds = service_seconds
    first, running, waiting = calls = [call(1) for _ in range(3)]
    batcher.submit(first, [b"class:0"])  # to know how long one takes
    await first.done.wait()
    backend.hold()
    batcher.submit(running, [b"class:0"])
    await backend.batches_arrived(2)
    batcher.submit(waiting, [b"class:0"])
    return batcher, calls


async def test_a_batch_leaves_when_the_worker_should_be_free_in_a_moment() -> None:
    backend = FakeBackend()
    batcher, calls = await busy_for(0.01, backend)
    await backend.batches_arrived(3)
    calls += [call(1), call(1)]
    for each in calls[3:]:
        batcher.submit(each, [b"class:0"])
    await asyncio.sleep(0.02)
    assert len(backend.batches) == 3, "one batch leaves early, not two"
    backend.release()
    await asyncio.gather(*(each.done.wait() for each in calls))
    assert [len(batch) for batch in backend.batches] == [1, 1, 1, 2]


async def test_images_that_come_meanwhile_do_not_miss_the_batch_after_a_long_one() -> None:
    backend = FakeBackend()
    batcher, calls = await busy_for(2 * LONGEST_SECONDS, backend)
    await asyncio.sleep(2.1 * LONGEST_SECONDS)
    calls += [call(1)]
    batcher.submit(calls[-1], [b"class:0"])
    backend.release()
    await asyncio.gather(*(each.done.wait() for each in calls))
    assert [len(batch) for batch in backend.batches] == [1, 1, 2]


async def test_a_batch_is_bounded_in_bytes() -> None:
    backend = FakeBackend()
    batcher = make(backend, limits(max_batch_bytes=20))
    whole = call(4)
    batcher.submit(whole, [b"class:0", b"class:1", b"class:2", b"class:000000000000000000003"])  # 7, 7, 7 and 27 bytes
    await whole.done.wait()
    # One item alone may be over the limit: it has to go at some time.
    assert [len(batch) for batch in backend.batches] == [2, 1, 1]


async def test_a_queue_is_bounded_in_bytes_and_takes_all_or_nothing() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    backend.hold()
    first = call(1)
    batcher.submit(first, [b"class:0"])
    await backend.batches_arrived(1)
    with pytest.raises(QueueFull) as caught:
        batcher.submit(call(2), [b"class:1", b"x" * 100])
    assert caught.value.num_waiting == 0
    second = call(1)
    batcher.submit(second, [b"class:1"])
    backend.release()
    await asyncio.gather(first.done.wait(), second.done.wait())
    assert backend.batches == [[b"class:0"], [b"class:1"]]


async def test_draining_finishes_what_is_there_and_takes_nothing_new() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    backend.hold()
    running, waiting = call(1), call(1)
    batcher.submit(running, [b"class:0"])
    await backend.batches_arrived(1)
    batcher.submit(waiting, [b"class:1"])
    drained = asyncio.create_task(batcher.drain(5))
    await asyncio.sleep(0)
    with pytest.raises(Draining):
        batcher.submit(call(1), [b"class:2"])
    backend.release()
    await drained
    assert running.results == [Ranking([(0, 1.0)])]
    assert waiting.results == [Ranking([(1, 1.0)])]


async def test_draining_has_a_limit_and_answers_who_is_left() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    backend.hold()
    running, waiting = call(1), call(1)
    batcher.submit(running, [b"class:0"])
    await backend.batches_arrived(1)
    batcher.submit(waiting, [b"class:1"])
    await batcher.drain(0.01)
    assert isinstance(running.results[0], Draining)
    assert isinstance(waiting.results[0], Draining)
    assert backend.num_in_flight == 0
