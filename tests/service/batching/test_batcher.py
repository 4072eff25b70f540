import asyncio
from functools import partial

import pytest

from service.batching.batcher import MAX_EXTRA_TURNS
from service.batching.request import InferenceRequest
from service.domain.backend import BatchAnswer, Ranking
from service.errors.gateway import Draining
from service.errors.overload import QueueFull
from tests.fake_backend import FakeBackend
from tests.service.batching.waiting import FAR, ask, make
from tests.service.limits import limits

pytestmark = pytest.mark.anyio


async def test_an_idle_batcher_adds_no_delay_and_a_busy_one_gathers() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    backend.hold()
    first = ask(1)
    batcher.submit(first, [b"class:0"])
    await backend.batches_arrived(1)
    others = [ask(1) for _ in range(3)]
    for each in others:
        batcher.submit(each, [b"class:1"])
    backend.release()
    await asyncio.gather(first.done.wait(), *(each.done.wait() for each in others))
    assert [len(batch) for batch in backend.batches] == [1, 3]
    assert [each.largest_batch for each in others] == [3, 3, 3]
    assert first.results == [Ranking([(0, 1.0)])]


async def test_a_lone_batch_is_answered_before_the_batcher_does_anything_else() -> None:
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
    requests = [ask(1) for _ in range(10)]
    batcher.submit(requests[0], [b"class:0"])
    for each in requests[1:]:
        batcher.submit(each, [b"class:0"])
        await asyncio.sleep(0)  # one turn
    await asyncio.gather(*(each.done.wait() for each in requests))
    assert len(backend.batches[0]) == 2 + MAX_EXTRA_TURNS


async def test_as_many_batches_run_as_there_are_slots() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    batcher.set_capacity(2, 2)
    backend.hold()
    requests = [ask(4) for _ in range(2)]
    for each in requests:
        batcher.submit(each, [b"class:0"] * 4)
    await backend.batches_arrived(2)
    assert backend.num_in_flight == 2
    backend.release()
    await asyncio.gather(*(each.done.wait() for each in requests))


async def test_idle_workers_share_what_came_at_once() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    batcher.set_capacity(2, 3)
    backend.hold()
    whole = ask(4)
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
    requests = [ask(1) for _ in range(6)]
    batcher.submit(requests[0], [b"class:0"])
    await backend.batches_arrived(1)
    for each in requests[1:4]:
        batcher.submit(each, [b"class:1"])
    await asyncio.sleep(0.01)
    assert [len(batch) for batch in backend.batches] == [1]
    batcher.submit(requests[4], [b"class:1"])
    await backend.batches_arrived(2)
    batcher.submit(requests[5], [b"class:2"])
    backend.release()
    await asyncio.gather(*(each.done.wait() for each in requests))
    assert [len(batch) for batch in backend.batches] == [1, 4, 1]


async def test_a_batch_is_bounded_in_bytes() -> None:
    backend = FakeBackend()
    batcher = make(backend, limits(max_batch_bytes=20))
    whole = ask(4)
    batcher.submit(whole, [b"class:0", b"class:1", b"class:2", b"class:000000000000000000003"])  # 7, 7, 7 and 27 bytes
    await whole.done.wait()
    # One item alone may be over the limit: it has to go at some time.
    assert [len(batch) for batch in backend.batches] == [2, 1, 1]


async def test_a_queue_is_bounded_in_bytes_and_takes_all_or_nothing() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    backend.hold()
    first = ask(1)
    batcher.submit(first, [b"class:0"])
    await backend.batches_arrived(1)
    with pytest.raises(QueueFull) as caught:
        batcher.submit(ask(2), [b"class:1", b"x" * 100])
    assert caught.value.num_waiting == 0
    second = ask(1)
    batcher.submit(second, [b"class:1"])
    backend.release()
    await asyncio.gather(first.done.wait(), second.done.wait())
    assert backend.batches == [[b"class:0"], [b"class:1"]]


async def test_an_observer_that_raises_does_not_take_back_the_answers() -> None:
    batcher = make(FakeBackend())

    def observe(answer: BatchAnswer) -> None:
        raise AssertionError("a mistake of ours")

    batcher.observe_answers(observe)
    request = ask(1)
    batcher.submit(request, [b"class:0"])
    await request.done.wait()
    while not batcher.is_idle:
        await asyncio.sleep(0)
    assert request.results == [Ranking([(0, 1.0)])]
    assert request.num_missing == 0


async def test_draining_finishes_present_requests_and_takes_no_new_ones() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    backend.hold()
    running, waiting = ask(1), ask(1)
    batcher.submit(running, [b"class:0"])
    await backend.batches_arrived(1)
    batcher.submit(waiting, [b"class:1"])
    drained = asyncio.create_task(batcher.drain(5))
    await asyncio.sleep(0)
    with pytest.raises(Draining):
        batcher.submit(ask(1), [b"class:2"])
    backend.release()
    await drained
    assert running.results == [Ranking([(0, 1.0)])]
    assert waiting.results == [Ranking([(1, 1.0)])]


async def test_draining_has_a_limit_and_answers_the_rest() -> None:
    backend = FakeBackend()
    batcher = make(backend)
    backend.hold()
    running, waiting = ask(1), ask(1)
    batcher.submit(running, [b"class:0"])
    await backend.batches_arrived(1)
    batcher.submit(waiting, [b"class:1"])
    await batcher.drain(0.01)
    assert isinstance(running.results[0], Draining)
    assert isinstance(waiting.results[0], Draining)
    assert backend.num_in_flight == 0
