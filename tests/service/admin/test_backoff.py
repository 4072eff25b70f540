"""Patience after wrong credentials."""

import pytest

from service.admin.addresses import MOST_ADDRESSES
from service.admin.backoff import FREE_FAILURES, LONGEST_WAIT_SECONDS, Backoff
from service.errors.admin import CredentialsBackoff

HERE = "192.0.2.1"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def waits(backoff: Backoff, address: str = HERE, given: bytes = b"a-guess") -> int:
    """Return how long an address has to wait."""
    try:
        backoff.require_patience(address, given)
    except CredentialsBackoff as error:
        return error.retry_after_seconds
    return 0


def test_the_first_failures_are_free_and_then_each_doubles_the_wait() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    for _ in range(FREE_FAILURES):
        backoff.fail(HERE)
        assert waits(backoff) == 0
    found = []
    for _ in range(9):
        backoff.fail(HERE)
        found.append(waits(backoff))
        clock.now += found[-1]
        assert waits(backoff) == 0
    assert found == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert found[-1] == LONGEST_WAIT_SECONDS
    clock.now += 3600
    backoff.fail(HERE)
    assert waits(backoff) == 0, "what was long ago is forgotten"


@pytest.mark.parametrize(("other", "has_to"), [("192.0.2.2", False), ("", False), (HERE, True)])
def test_only_the_address_that_failed_has_to_wait(other: str, has_to: bool) -> None:
    backoff = Backoff(Clock())
    for _ in range(FREE_FAILURES + 1):
        backoff.fail(HERE)
    assert bool(waits(backoff, other)) == has_to


def test_a_network_of_ipv6_waits_as_one() -> None:
    backoff = Backoff(Clock())
    for number in range(FREE_FAILURES + 1):
        backoff.fail(f"2001:db8::{number:x}")
    assert waits(backoff, "2001:db8::ffff") == 1
    assert waits(backoff, "2001:db8:0:1::1") == 0


def test_what_was_right_before_stays_right_and_buys_no_guesses() -> None:
    backoff = Backoff(Clock())
    backoff.trust(HERE, b"a-good-key")
    for _ in range(FREE_FAILURES + 1):
        backoff.fail(HERE)
        backoff.trust(HERE, b"a-good-key")
    assert waits(backoff, given=b"a-good-key") == 0
    assert waits(backoff, given=b"a-guess") == 1


def test_however_many_fail_the_table_is_bounded() -> None:
    backoff = Backoff(Clock())
    for number in range(3 * MOST_ADDRESSES):
        backoff.fail(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(backoff._failures) <= 2 * MOST_ADDRESSES
