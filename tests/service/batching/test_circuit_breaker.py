from service.batching.circuit_breaker import (
    FAILURES_THAT_OPEN,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    CircuitBreaker,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> CircuitBreaker:
    circuit = CircuitBreaker(clock)
    for _ in range(FAILURES_THAT_OPEN):
        circuit.record_failure()
    return circuit


def test_it_opens_after_failures_in_a_row_only() -> None:
    circuit = CircuitBreaker(Clock())
    for _ in range(3):
        for _ in range(FAILURES_THAT_OPEN - 1):
            circuit.record_failure()
        assert circuit.state == "closed"
        circuit.record_success()
    assert opened(Clock()).state == "open"


def test_one_is_tried_after_a_pause_and_success_closes() -> None:
    clock = Clock()
    circuit = opened(clock)
    clock.now += FIRST_PAUSE_SECONDS / 2
    circuit.record_failure()  # a batch that was in flight: it neither closes the circuit nor prolongs the pause
    assert 0 < circuit.seconds_left() <= FIRST_PAUSE_SECONDS / 2
    clock.now += FIRST_PAUSE_SECONDS / 2
    assert circuit.state == "half_open"
    circuit.record_success()
    assert circuit.seconds_left() == 0
    assert str(circuit.state) == "closed"


def test_the_pause_grows_up_to_a_limit_and_starts_anew() -> None:
    clock = Clock()
    circuit = opened(clock)
    pauses = []
    for _ in range(10):
        pauses.append(circuit.seconds_left())
        clock.now += circuit.seconds_left()
        circuit.record_failure()
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    circuit.record_success()
    for _ in range(FAILURES_THAT_OPEN):
        circuit.record_failure()
    assert circuit.seconds_left() == FIRST_PAUSE_SECONDS
