"""The next batch leaves shortly before its worker should be free."""

import asyncio
from typing import Any, cast

import pytest

from service.batching.batch_former import PREFETCH_SECONDS
from service.batching.batcher import MAX_EXTRA_TURNS, PREFETCH_MAX_SERVICE_SECONDS, Batcher
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import VersionMetrics
from tests.fake_backend import FakeBackend
from tests.service.alarms import Alarms
from tests.service.batching.waiting import TARGET, Waiting, ask, make
from tests.service.limits import LIMITS

pytestmark = pytest.mark.anyio


async def busy_for(service_seconds: float, backend: FakeBackend) -> tuple[Batcher, list[Waiting]]:
    """Return a batcher whose only worker is held past its service time, and three requests: done, running, queued."""
    batcher = make(backend)
    batcher.set_capacity(1, 3)
    backend.service_seconds = service_seconds
    first, running, waiting = requests = [ask(1) for _ in range(3)]
    batcher.submit(first, [b"class:0"])  # to know how long one takes
    await first.done.wait()
    backend.hold()
    batcher.submit(running, [b"class:0"])
    await backend.batches_arrived(2)
    batcher.submit(waiting, [b"class:0"])
    return batcher, requests


async def test_the_next_batch_leaves_shortly_before_the_worker_should_be_free() -> None:
    backend = FakeBackend()
    batcher, requests = await busy_for(0.01, backend)
    await backend.batches_arrived(3)
    requests += [ask(1), ask(1)]
    for each in requests[3:]:
        batcher.submit(each, [b"class:0"])
    await asyncio.sleep(0.02)
    assert len(backend.batches) == 3, "one batch leaves early, not two"
    backend.release()
    await asyncio.gather(*(each.done.wait() for each in requests))
    assert [len(batch) for batch in backend.batches] == [1, 1, 1, 2]


async def test_nothing_is_prefetched_behind_a_long_batch() -> None:
    backend = FakeBackend()
    batcher, requests = await busy_for(2 * PREFETCH_MAX_SERVICE_SECONDS, backend)
    await asyncio.sleep(2.1 * PREFETCH_MAX_SERVICE_SECONDS)
    requests += [ask(1)]
    batcher.submit(requests[-1], [b"class:0"])
    backend.release()
    await asyncio.gather(*(each.done.wait() for each in requests))
    assert [len(batch) for batch in backend.batches] == [1, 1, 2]


async def with_timers(service_seconds: float) -> tuple[Batcher, FakeBackend, Alarms]:
    """Return a batcher that knows a batch's service time, with one batch held at its only worker."""
    backend, timers = FakeBackend(), Alarms()
    backend.service_seconds = service_seconds
    batcher = Batcher(
        TARGET, backend, LIMITS, VersionMetrics(Metrics(), TARGET), lambda: timers.now, cast(Any, timers.call_later)
    )
    batcher.set_capacity(1, 3)
    first = ask(1)
    batcher.submit(first, [b"class:0"])
    await first.done.wait()
    backend.hold()
    batcher.submit(ask(1), [b"class:0"])
    await backend.batches_arrived(2)
    return batcher, backend, timers


async def test_a_batch_is_prefetched_shortly_before_the_worker_should_be_free_and_not_behind_a_stuck_one() -> None:
    batcher, backend, timers = await with_timers(0.005)
    assert timers.times() == pytest.approx([0.005 - PREFETCH_SECONDS])
    timers.ring(0.005 - PREFETCH_SECONDS)
    assert timers.times() == pytest.approx([2 * 0.005]), "late by its own length, it may be stuck"
    timers.ring(0.01)
    late = ask(1)
    batcher.submit(late, [b"class:0"])
    for _ in range(3 + MAX_EXTRA_TURNS):
        await asyncio.sleep(0)
    assert len(backend.batches) == 2
    backend.release()
    await late.done.wait()
    assert len(backend.batches) == 3


async def test_a_waiting_batch_gets_its_timer_when_its_worker_is_free() -> None:
    batcher, backend, timers = await with_timers(0.005)
    timers.ring(0.004)
    second = ask(1)
    batcher.submit(second, [b"class:0"])
    await backend.batches_arrived(3)
    assert timers.times() == pytest.approx([0.01]), "the second batch has no worker yet"
    backend.release()
    await second.done.wait()
    await batcher.drain(5)
    assert not timers.times()


@pytest.mark.parametrize("seconds", [PREFETCH_SECONDS / 2, 1.1 * PREFETCH_MAX_SERVICE_SECONDS])
async def test_nothing_is_prefetched_behind_batches_so_short_or_so_long(seconds: float) -> None:
    batcher, backend, timers = await with_timers(seconds)
    assert not timers.times()
    backend.release()
    await batcher.drain(5)
