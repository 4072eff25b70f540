"""One timer for all calls; the event loop's own clock, since that is what rings."""

import asyncio
import time

import pytest

from service.batching.deadlines import Deadlines
from service.batching.queue import InferenceRequest
from service.errors.gateway import DeadlineExceeded

pytestmark = pytest.mark.anyio


def call_until(seconds: float, ended: list[float]) -> InferenceRequest:
    deadline = time.monotonic() + seconds
    return InferenceRequest(1, 1, deadline, lambda: ended.append(deadline))


async def test_calls_end_at_their_deadlines_whatever_the_order_they_came_in() -> None:
    deadlines, ended = Deadlines(), list[float]()
    calls = [call_until(seconds, ended) for seconds in (0.06, 0.02, 0.04, -1.0)]
    for number, call in enumerate(calls):
        deadlines.watch(call, number)
    async with asyncio.timeout(10):
        while len(ended) < len(calls):
            await asyncio.sleep(0)
            assert not any(call.is_done and call.deadline > time.monotonic() for call in calls)
    assert ended == sorted(ended)
    for number, call in enumerate(calls):
        assert isinstance(call.error, DeadlineExceeded)
        assert f"{number} ms" in str(call.error)


async def test_what_has_ended_is_left_alone_and_not_kept() -> None:
    deadlines, ended = Deadlines(), list[float]()
    for _ in range(100):
        call = call_until(60, ended)
        deadlines.watch(call, 60_000)
        call.answer(0, DeadlineExceeded(1))
        assert call.error is None
    assert len(deadlines._calls) == 1
    call.end(DeadlineExceeded(1))
    assert call.error is None
    assert len(ended) == 100
