"""Rates with bursts."""

import pytest

from service.domain.token_bucket import TokenBucket


def test_a_burst_then_the_rate() -> None:
    bucket = TokenBucket(rate=10, burst=5)
    assert [bucket.take(1, 100.0) for _ in range(5)] == [0] * 5
    assert bucket.take(1, 100.0) == pytest.approx(0.1)
    assert bucket.take(1, 100.05) == pytest.approx(0.05)
    assert bucket.take(1, 100.1) == 0
    assert sum(not bucket.take(1, 100.1 + n / 100) for n in range(1001)) == pytest.approx(100, abs=1)


def test_it_never_holds_more_than_a_burst() -> None:
    bucket = TokenBucket(rate=10, burst=5)
    assert sum(not bucket.take(1, 1e6) for _ in range(20)) == 5


def test_who_takes_more_than_a_burst_waits_for_it_afterwards() -> None:
    bucket = TokenBucket(rate=10, burst=5)
    assert bucket.take(25, 100.0) == 0
    assert bucket.take(1, 100.0) == pytest.approx(2.1)
    assert bucket.take(25, 102.4) == pytest.approx(0.1)
    assert bucket.take(25, 102.5) == 0
