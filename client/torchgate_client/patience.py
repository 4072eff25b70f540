"""When to try a call again, and how long to wait before."""

import random
import time
from typing import Any

import httpx

from torchgate_client.calls import Call
from torchgate_client.errors import GatewayProblem, Overloaded

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
PASSING = {429, 502, 503}  # a later try may succeed; after a 504 the deadline is over


class Patience:
    """Counts the tries of one call."""

    def __init__(self, call: Call[Any], num_retries: int, seconds: float) -> None:
        self._call = call
        self._left = num_retries
        self._pause = FIRST_PAUSE_SECONDS
        self._end = time.monotonic() + min(seconds, call.seconds or seconds)

    @property
    def seconds_left(self) -> float:
        """Return how long the call may still take."""
        return max(self._end - time.monotonic(), 0.001)

    def pause_after(self, failure: Exception) -> float | None:
        """Return how long to wait before the next try, in seconds; None if there is to be none."""
        if self._left <= 0 or not self._may_pass(failure):
            return None
        told = failure.retry_after_seconds if isinstance(failure, GatewayProblem) else None
        # With a little at random, so that many clients do not come back at the same moment.
        pause = (self._pause if told is None else told) * random.uniform(1, 1.25)  # noqa: S311 - no secret
        if pause > min(self.seconds_left, LONGEST_PAUSE_SECONDS) - FIRST_PAUSE_SECONDS:
            return None
        self._left -= 1
        self._pause *= 2
        return pause

    def _may_pass(self, failure: Exception) -> bool:
        if isinstance(failure, httpx.ConnectError):
            return True  # nothing was sent
        if not self._call.may_repeat:
            # What was refused for load was not done; 503 may come after it was.
            return isinstance(failure, Overloaded)
        if isinstance(failure, GatewayProblem):
            return failure.status in PASSING
        return isinstance(failure, httpx.TransportError) and not isinstance(failure, httpx.TimeoutException)
