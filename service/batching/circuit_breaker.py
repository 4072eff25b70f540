"""A circuit breaker: stops asking a backend that does not answer, and tries again after a while."""

from collections.abc import Callable

from service.telemetry.labels import CircuitState

FAILURES_THAT_OPEN = 5
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 8.0


class CircuitBreaker:
    """Closed while batches are answered; open after FAILURES_THAT_OPEN in a row were not.

    After a pause it is half open: one batch is let through, and its end closes the circuit or doubles the pause.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_failures = 0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._opened_at: float | None = None

    @property
    def state(self) -> CircuitState:
        """Return what it lets through now: everything, one batch, nothing."""
        if self._opened_at is None:
            return "closed"
        return "half_open" if self.seconds_left() <= 0 else "open"

    def seconds_left(self) -> float:
        """Return how long it stays open; 0 or less when it does not."""
        if self._opened_at is None:
            return 0.0
        return self._opened_at + self._pause_seconds - self._clock()

    def succeeded(self) -> None:
        """Take in that a batch was answered."""
        self._num_failures = 0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._opened_at = None

    def failed(self) -> None:
        """Take in that a batch got no answer."""
        self._num_failures += 1
        if self._opened_at is None:
            if self._num_failures >= FAILURES_THAT_OPEN:
                self._opened_at = self._clock()
        elif self.seconds_left() <= 0:
            self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
            self._opened_at = self._clock()
