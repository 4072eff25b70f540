"""The circuit breaker: stops sending batches to a backend that does not answer, and tries again after a pause."""

from collections.abc import Callable

from service.telemetry.metric_labels import CircuitState

FAILURES_THAT_OPEN = 5
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 8.0


class CircuitBreaker:
    """Closed while batches are answered; open after FAILURES_THAT_OPEN failures in a row.

    After a pause it is half open: one batch is sent, and its result closes the circuit or doubles the pause.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.num_failures = 0  # since the last success; 0 means closed
        self._clock = clock
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._opened_at: float | None = None

    @property
    def state(self) -> CircuitState:
        """Return what may be sent now: closed means every batch, half open one, open none."""
        if self._opened_at is None:
            return "closed"
        return "half_open" if self.seconds_left() <= 0 else "open"

    def seconds_left(self) -> float:
        """Return how long it stays open; 0 or less unless it is open."""
        if self._opened_at is None:
            return 0.0
        return self._opened_at + self._pause_seconds - self._clock()

    def record_success(self) -> None:
        """Close the circuit: a batch was answered."""
        self.num_failures = 0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._opened_at = None

    def record_failure(self) -> None:
        """Count a batch that the backend did not answer; open the circuit if there were too many."""
        self.num_failures += 1
        if self._opened_at is None:
            if self.num_failures >= FAILURES_THAT_OPEN:
                self._opened_at = self._clock()
        elif self.seconds_left() <= 0:
            self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
            self._opened_at = self._clock()
