"""Deadlines end requests by one shared timer, on the event loop's own clock."""

import asyncio
import time

import pytest

from service.batching.request import Deadlines, InferenceRequest
from service.errors.gateway import DeadlineExceeded

pytestmark = pytest.mark.anyio


def request_until(seconds: float, ended: list[float]) -> InferenceRequest:
    deadline = time.monotonic() + seconds
    return InferenceRequest(1, 1, deadline, lambda: ended.append(deadline))


async def test_requests_end_at_their_deadlines_in_any_order_of_submission() -> None:
    deadlines, ended = Deadlines(), list[float]()
    requests = [request_until(seconds, ended) for seconds in (0.06, 0.02, 0.04, -1.0)]
    for number, request in enumerate(requests):
        deadlines.watch(request, number)
    async with asyncio.timeout(10):
        while len(ended) < len(requests):
            await asyncio.sleep(0)
            assert not any(request.is_done and request.deadline > time.monotonic() for request in requests)
    assert ended == sorted(ended)
    for number, request in enumerate(requests):
        assert isinstance(request.error, DeadlineExceeded)
        assert f"{number} ms" in str(request.error)


async def test_ended_requests_are_left_alone_and_not_kept() -> None:
    deadlines, ended = Deadlines(), list[float]()
    for _ in range(100):
        request = request_until(60, ended)
        deadlines.watch(request, 60_000)
        request.answer(0, DeadlineExceeded(1))
        assert request.error is None
    assert len(deadlines._heap) == 1
    request.end(DeadlineExceeded(1))
    assert request.error is None
    assert len(ended) == 100
