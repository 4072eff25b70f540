"""Metrics of the state's database."""

import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

Failure = Literal["failed", "timed_out", "shed"]


class StateMetrics:
    """Whether the state's database answers; safe in threads."""

    def __init__(self, registry: CollectorRegistry | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self._clock = clock
        self._last_success = clock()

        self.up = gauge("torchgate_state_database_up", "1 if the state's database answered the last call, otherwise 0.")
        self.silence = gauge(
            "torchgate_state_database_silence_seconds",
            "Time since the state's database last answered a call, or since the start.",
        )
        self.operations = counter(
            "torchgate_state_database_operations_total",
            "Calls of the state's database by outcome: success, failed (an error), timed_out (no answer in time), shed "
            "(too many calls were waiting).",
            ("outcome",),
        )
        self.silence.set_function(lambda: self._clock() - self._last_success)
        self._successes = self.operations.labels("success")
        self._failures = {outcome: self.operations.labels(outcome) for outcome in Failure.__args__}  # type: ignore[attr-defined]

    def succeeded(self) -> None:
        """Record that the database answered."""
        self._last_success = self._clock()
        self._successes.inc()
        self.up.set(1)

    def failed(self, outcome: Failure) -> None:
        """Record that it did not."""
        self._failures[outcome].inc()
        if outcome != "shed":
            self.up.set(0)
