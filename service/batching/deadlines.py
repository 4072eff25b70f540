"""Ends the calls whose deadlines pass."""

import asyncio
import time
from heapq import heappop, heappush
from itertools import count

from service.batching.queue import InferenceRequest
from service.errors.gateway import DeadlineExceeded


class Deadlines:
    """One timer for all calls: one for each would cost as much as queueing it, and hardly any ever rings."""

    def __init__(self) -> None:
        self._calls: list[
            tuple[float, int, int, InferenceRequest]
        ] = []  # a heap; what ended leaves it when it is the first
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def watch(self, call: InferenceRequest, deadline_ms: int) -> None:
        """End the call with DeadlineExceeded(deadline_ms) once its deadline has passed, unless it has ended then."""
        self._forget_the_ended()
        heappush(self._calls, (call.deadline, next(self._numbers), deadline_ms, call))
        self._set_timer()

    def _forget_the_ended(self) -> None:
        while self._calls and self._calls[0][3].is_done:
            heappop(self._calls)

    def _set_timer(self) -> None:
        earliest = self._calls[0][0]
        if self._timer is not None:
            if self._rings_at <= earliest:
                return
            self._timer.cancel()
        self._rings_at = earliest
        self._timer = asyncio.get_running_loop().call_later(max(earliest - time.monotonic(), 0), self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = time.monotonic()
        while self._calls and self._calls[0][0] <= now:
            _, _, deadline_ms, call = heappop(self._calls)
            call.end(DeadlineExceeded(deadline_ms))
        self._forget_the_ended()
        if self._calls:
            self._set_timer()
