"""Measures the event loop's delay: whatever delays it delays every request."""

import asyncio
import time
from types import TracebackType
from typing import Self

from service.telemetry.metrics import Metrics

# Ten a second find every long delay, at no measurable cost.
PAUSE_SECONDS = 0.1


class LoopLag:
    """Measures the running event loop while it is entered."""

    def __init__(self, metrics: Metrics) -> None:
        self._seconds = metrics.loop_lag_seconds

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + PAUSE_SECONDS
            await asyncio.sleep(PAUSE_SECONDS)
            # uvloop rounds timers to milliseconds, some of them down.
            self._seconds.observe(max(0.0, time.monotonic() - due))
