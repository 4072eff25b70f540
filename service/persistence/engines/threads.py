"""Threads for the database alone: one that hangs holds up neither hashing, unpacking nor the gateway's own answers."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from service.errors.admin import StateUnavailable
from service.telemetry.state_metrics import StateMetrics

# Longer than a driver may take: 5 s for a statement and 3 s to connect anew (engine.py).
ANSWER_SECONDS = 10.0

P = ParamSpec("P")
T = TypeVar("T")


class DatabaseThreads:
    """Runs blocking calls, so many at once; so many may wait, and none longer than ANSWER_SECONDS."""

    def __init__(self, name: str, num_threads: int, most_calls: int, metrics: StateMetrics) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._most_calls = most_calls
        self._metrics = metrics
        self._num_calls = 0  # waiting or running, those included that nobody waits for any more
        self._is_closed = False

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `work` returns.

        Raises:
            StateUnavailable: too many calls wait, or this one took too long. It may still be carried out.
        """
        if self._is_closed:
            raise StateUnavailable("it is closed, as the gateway stops")
        if self._num_calls >= self._most_calls:
            self._metrics.failed("shed")
            raise StateUnavailable(f"{self._num_calls} calls wait for its answer")
        self._num_calls += 1
        begun = partial(_unless_late, time.monotonic() + ANSWER_SECONDS, partial(work, *args, **kwargs))
        future = asyncio.get_running_loop().run_in_executor(self._executor, begun)
        future.add_done_callback(self._ended)
        done, _ = await asyncio.wait({future}, timeout=ANSWER_SECONDS)
        if not done:
            self._metrics.failed("timed_out")
            raise StateUnavailable(
                f"it has not answered within {ANSWER_SECONDS:g} s; a change may be carried out yet, so look before you "
                "repeat it"
            )
        return future.result()

    def close(self) -> None:
        """Take no more calls; those that wait are dropped."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _ended(self, future: "asyncio.Future[T]") -> None:
        self._num_calls -= 1
        if not future.cancelled():
            future.exception()  # nobody may be left to ask for it


def _unless_late(deadline: float, work: Callable[[], T]) -> T:
    """Return what `work` returns, unless nobody waits for it any more."""
    if time.monotonic() > deadline:
        raise StateUnavailable("its threads were busy for too long")
    return work()
