"""Large images: alone, on half of the workers, forecast apart, and only as long as others are smaller."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from service.batching.batcher import Batcher
from service.batching.request import InferenceRequest
from service.domain.backend import BatchAnswer, BatchOptions, Ranking, Target
from service.domain.caller import Caller
from service.errors.gateway import WorkerDied
from service.errors.overload import DeadlineUnreachable
from tests.fake_backend import FakeBackend
from tests.service.batching.waiting import FAR, Waiting, ask, make
from tests.service.limits import limits

pytestmark = pytest.mark.anyio

LARGE = b"GI:2"  # a GIF whose size cannot be read; its answer is class 2
SMALL = b"class:1"
LIMITS = limits(max_batch_size=8, max_batch_bytes=1000, max_queue_items=1000, max_queue_bytes=50_000)


def batcher_of(backend: FakeBackend, num_workers: int) -> Batcher:
    batcher = make(backend, LIMITS)
    batcher.set_capacity(num_workers, num_workers + 1)
    return batcher


def submit(batcher: Batcher, *payloads: bytes) -> Waiting:
    request = ask(len(payloads))
    batcher.submit(request, payloads)
    return request


async def answered(*requests: Waiting) -> None:
    async with asyncio.timeout(10):
        await asyncio.gather(*(each.done.wait() for each in requests))


async def test_a_large_image_shares_no_batch() -> None:
    backend = FakeBackend()
    batcher = batcher_of(backend, 2)
    request = submit(batcher, SMALL, LARGE, SMALL, SMALL)
    await answered(request)
    assert [batch for batch in backend.batches if LARGE in batch] == [[LARGE]]
    assert [options.is_large for options in backend.options] == [batch == [LARGE] for batch in backend.batches]
    classes = [result.top_k[0][0] for result in request.results if isinstance(result, Ranking)]
    assert classes == [1, 2, 1, 1]
    assert request.num_batches == len(backend.batches)


async def test_large_images_take_half_of_the_workers_and_the_others_find_one_free() -> None:
    backend = FakeBackend()
    batcher = batcher_of(backend, 4)
    backend.hold()
    large = [submit(batcher, LARGE) for _ in range(6)]
    await backend.batches_arrived(2)
    small = [submit(batcher, SMALL), submit(batcher, SMALL)]
    await backend.batches_arrived(4)
    assert backend.batches == [[LARGE], [LARGE], [SMALL], [SMALL]]
    backend.release()
    await answered(*large, *small)


async def test_with_one_worker_they_take_turns() -> None:
    backend = FakeBackend()
    batcher = batcher_of(backend, 1)
    backend.hold()
    first = submit(batcher, SMALL)
    await backend.batches_arrived(1)
    large = [submit(batcher, LARGE) for _ in range(3)]
    small = submit(batcher, *[SMALL] * 16)
    backend.release()
    await answered(first, small, *large)
    assert backend.batches == [[SMALL], [LARGE], [SMALL] * 8, [LARGE], [SMALL] * 8, [LARGE]]


class Timed(FakeBackend):
    """A large image takes as long as ten batches of others."""

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        self.service_seconds = 0.03 if LARGE in items else 0.003
        return await super().predict(target, items, options, timeout_seconds)


@pytest.mark.parametrize(("num_callers", "num_batches"), [(1, 10), (3, 30)])
async def test_while_others_wait_they_have_the_time_of_as_many_callers(num_callers: int, num_batches: int) -> None:
    backend = Timed()
    batcher = batcher_of(backend, 1)
    await answered(submit(batcher, SMALL), submit(batcher, LARGE))
    backend.batches.clear()
    backend.hold()
    first = submit(batcher, SMALL)
    await backend.batches_arrived(1)
    large = [submit(batcher, LARGE) for _ in range(3)]
    small = [Waiting(240, Caller(f"caller-{n}")) for n in range(num_callers)]
    for each in small:
        batcher.submit(each, [SMALL] * 240)
    backend.release()
    await answered(first, *large, *small)
    places = [place for place, batch in enumerate(backend.batches) if batch == [LARGE]]
    assert places[-1] - places[-2] - 1 == pytest.approx(num_batches, abs=2)


async def test_what_they_owe_is_forgotten_when_nobody_else_waits() -> None:
    backend = Timed()
    batcher = batcher_of(backend, 1)
    await answered(submit(batcher, SMALL), submit(batcher, LARGE))
    await answered(*(submit(batcher, payload) for payload in (SMALL, LARGE, LARGE)))


async def test_what_they_owe_is_forgotten_when_the_others_have_left() -> None:
    """A large image waited for its deadline beside a free worker: the only other item was that of a caller who left."""
    backend = Timed()
    batcher = batcher_of(backend, 1)
    await answered(submit(batcher, SMALL), submit(batcher, LARGE))
    backend.hold()
    first, second, other = (submit(batcher, payload) for payload in (LARGE, LARGE, SMALL))
    await backend.batches_arrived(3)
    other.end()
    backend.release()
    await answered(first, second)


async def test_where_all_are_large_none_is() -> None:
    backend = FakeBackend()
    batcher = batcher_of(backend, 2)
    for _ in range(80):
        await answered(submit(batcher, LARGE))
    backend.batches.clear()
    await answered(submit(batcher, *[LARGE] * 8))
    assert backend.batches == [[LARGE] * 4, [LARGE] * 4]
    for _ in range(80):
        await answered(submit(batcher, SMALL))
    await answered(submit(batcher, LARGE, LARGE))
    assert backend.batches[-2:] == [[LARGE], [LARGE]]


async def test_who_sends_large_images_only_sometimes_does_not_make_them_usual() -> None:
    backend = FakeBackend()
    batcher = batcher_of(backend, 2)
    for _ in range(200):
        await answered(submit(batcher, LARGE), submit(batcher, SMALL), submit(batcher, SMALL))
    assert all(len(batch) == 1 for batch in backend.batches if LARGE in batch)


async def test_the_model_of_the_others_learns_nothing_from_them() -> None:
    backend = FakeBackend()
    batcher = batcher_of(backend, 2)
    await answered(submit(batcher, SMALL))
    before = batcher.gauges.fixed_seconds() + batcher.gauges.per_item_seconds()
    backend.service_seconds = 5.0
    await answered(submit(batcher, LARGE))
    assert batcher.gauges.fixed_seconds() + batcher.gauges.per_item_seconds() == before


async def test_the_forecast_of_a_large_image_counts_the_large_ones_before_it_alone() -> None:
    backend = FakeBackend()
    batcher = batcher_of(backend, 2)
    backend.service_seconds = 2.0
    await answered(submit(batcher, LARGE))
    backend.service_seconds = 0.001
    await answered(submit(batcher, SMALL))
    backend.hold()
    waiting = [submit(batcher, LARGE) for _ in range(4)]
    await backend.batches_arrived(3)
    late = InferenceRequest(1, 1, time.monotonic() + 9.0, lambda: None)
    with pytest.raises(DeadlineUnreachable, match="10000 ms"):
        batcher.submit(late, [LARGE])
    early = Waiting(1)
    early.deadline = time.monotonic() + 9.0
    batcher.submit(early, [SMALL])
    await backend.batches_arrived(4)
    backend.release()
    await answered(early, *waiting)


async def test_one_whose_worker_died_is_tried_again_alone() -> None:
    backend = FakeBackend()
    batcher = batcher_of(backend, 2)
    backend.fails_once_with = WorkerDied("killed")
    await answered(submit(batcher, LARGE, SMALL))
    assert backend.batches.count([LARGE]) == 2 or backend.batches.count([SMALL]) == 2
    assert all(
        options.is_large == (batch == [LARGE]) for batch, options in zip(backend.batches, backend.options, strict=True)
    )


async def test_those_that_nobody_waits_for_are_dropped() -> None:
    backend = FakeBackend()
    batcher = batcher_of(backend, 2)
    backend.hold()
    first, left = submit(batcher, LARGE), submit(batcher, LARGE)
    await backend.batches_arrived(1)
    left.end()
    backend.release()
    await answered(first)
    while not batcher.is_idle:
        await asyncio.sleep(0)
    assert backend.batches == [[LARGE]]
    assert left.deadline == FAR
