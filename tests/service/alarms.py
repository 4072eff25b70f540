"""Alarms that ring when the test says so, in the event loop's place."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class FakeAlarm:
    """Calls `ring` at a time by the test's clock, unless it is cancelled before."""

    time: float
    ring: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Do not ring."""
        self.is_cancelled = True


class Alarms:
    """Those that are set, by a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self._all: list[FakeAlarm] = []

    def call_later(self, seconds: float, callback: Callable[..., None], *args: Any) -> FakeAlarm:
        """Set one, as an event loop does."""
        self._all.append(FakeAlarm(self.now + seconds, lambda: callback(*args)))
        return self._all[-1]

    def times(self) -> list[float]:
        """Return when those that are set ring."""
        return [alarm.time for alarm in self._all if not alarm.is_cancelled]

    def ring(self, now: float) -> None:
        """Move the clock to `now`, and ring what is due."""
        self.now = now
        due = [alarm for alarm in self._all if alarm.time <= now]
        self._all = [alarm for alarm in self._all if alarm.time > now]
        for alarm in due:
            if not alarm.is_cancelled:
                alarm.ring()
