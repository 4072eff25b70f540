"""When batches in flight should be back in a moment, so that the next one is there as its worker is free."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from service.batching.batch_former import Batch
from service.batching.latency_model import MOMENT_SECONDS, LatencyModel

# Of a batch that takes longer a moment is too small a part for the images that come meanwhile to miss the next one.
LONGEST_SECONDS = 0.016


class Alarm(Protocol):
    """What `call_later` returns."""

    def cancel(self) -> None:
        """Do not ring."""


class Prefetch:
    """Tells the forecast which batches are almost back, and calls `notify` whenever one more is."""

    def __init__(
        self, forecast: LatencyModel, notify: Callable[[], None], call_later: Callable[..., Alarm] | None
    ) -> None:
        self._latency_model = forecast
        self._notify = notify
        self._call_later = call_later
        self._ahead: deque[Batch] = deque()  # each of them begins when another batch is back
        self._alarms: dict[Batch, Alarm] = {}

    def begin(self, batch: Batch, *, has_worker: bool) -> None:
        """Take in that the batch went to a worker that is free, or to wait for one."""
        if has_worker:
            self._begin(batch)
        else:
            self._ahead.append(batch)

    def end(self, batch: Batch) -> None:
        """Take in that the batch is back."""
        if batch in self._ahead:
            self._ahead.remove(batch)
            return
        alarm = self._alarms.pop(batch, None)
        if alarm is not None:
            alarm.cancel()
        if self._ahead:
            self._begin(self._ahead.popleft())

    def _begin(self, batch: Batch) -> None:
        assert batch.expected is not None, "it is in flight"
        seconds = batch.expected.service_seconds
        if MOMENT_SECONDS < seconds <= LONGEST_SECONDS:
            self._set_alarm(batch, seconds - MOMENT_SECONDS, is_almost_back=True)

    def _set_alarm(self, batch: Batch, seconds: float, *, is_almost_back: bool) -> None:
        call_later = self._call_later or asyncio.get_running_loop().call_later
        self._alarms[batch] = call_later(seconds, self._ring, batch, is_almost_back)

    def _ring(self, batch: Batch, is_almost_back: bool) -> None:
        assert batch.expected is not None, "it is in flight"
        del self._alarms[batch]
        self._latency_model.set_almost_back(batch.expected, is_almost_back)
        if is_almost_back:
            # Late by as much as it should have taken, it may be stuck, and with it what is sent after it.
            self._set_alarm(batch, MOMENT_SECONDS + batch.expected.service_seconds, is_almost_back=False)
            self._notify()
