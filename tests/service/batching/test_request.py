"""Deadlines end requests that have not ended before."""

import asyncio
import sys
import time

import pytest

from service.batching.request import InferenceRequest
from service.errors.gateway import DeadlineExceeded

pytestmark = pytest.mark.anyio
CLOCK_SECONDS = 0.001  # the resolution of the event loops' timers


def request_until(seconds: float, ended: list[float]) -> InferenceRequest:
    deadline = time.monotonic() + seconds
    return InferenceRequest(1, 1, deadline, lambda: ended.append(deadline))


async def test_requests_end_at_their_deadlines_in_any_order_of_submission() -> None:
    ended = list[float]()
    requests = [request_until(seconds, ended) for seconds in (0.06, 0.02, 0.04, -1.0)]
    for number, request in enumerate(requests):
        request.expire(number)
    async with asyncio.timeout(10):
        while len(ended) < len(requests):
            await asyncio.sleep(0)
            early = time.monotonic() + CLOCK_SECONDS
            assert not any(request.is_done and request.deadline > early for request in requests)
    assert ended == sorted(ended)
    for number, request in enumerate(requests):
        assert isinstance(request.error, DeadlineExceeded)
        assert f"{number} ms" in str(request.error)


async def test_ended_requests_are_left_alone_and_not_kept() -> None:
    ended = list[float]()
    request = request_until(60, ended)
    num_references = sys.getrefcount(request)
    request.expire(60_000)
    assert sys.getrefcount(request) > num_references
    request.answer(0, DeadlineExceeded(1))
    request.end(DeadlineExceeded(1))
    assert request.error is None
    assert len(ended) == 1
    assert sys.getrefcount(request) == num_references  # no timer holds it for a minute
