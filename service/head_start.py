"""Which batches should be back in a moment, so that the next one may leave: it is there when its worker is free."""

import asyncio
from collections.abc import Callable

from service.batch import Batch

# About what lies between a worker's answer and its next batch otherwise: both ways, and their turns of the event loop.
HEAD_START_SECONDS = 0.001
# Of a batch that takes longer this is too small a part for the images that come meanwhile to miss the next one.
LONGEST_SECONDS = 0.016


class HeadStart:
    """Calls `notify` whenever one more of the batches in flight is about to be back."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._alarms: dict[Batch, asyncio.TimerHandle] = {}
        self._almost_back: set[Batch] = set()

    @property
    def num_almost_back(self) -> int:
        """Return how many batches in flight are expected back within HEAD_START_SECONDS, or were long ago."""
        return len(self._almost_back)

    def begin(self, batch: Batch, seconds: float) -> None:
        """Take in that the batch went to the backend and is expected to be back in so many seconds."""
        if HEAD_START_SECONDS < seconds <= LONGEST_SECONDS:
            loop = asyncio.get_running_loop()
            self._alarms[batch] = loop.call_later(seconds - HEAD_START_SECONDS, self._ring, batch)

    def end(self, batch: Batch) -> None:
        """Take in that the batch is back."""
        self._almost_back.discard(batch)
        alarm = self._alarms.pop(batch, None)
        if alarm is not None:
            alarm.cancel()

    def _ring(self, batch: Batch) -> None:
        del self._alarms[batch]
        self._almost_back.add(batch)
        self._notify()
