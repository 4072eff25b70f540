"""The phases of batches in flight, and when a worker should be free."""

import pytest

from service.batching.batch_former import PREFETCH_SECONDS, InFlight
from service.batching.request import Batch, InferenceRequest, Item

SERVICE_SECONDS = 0.005


def begin(in_flight: InFlight) -> Batch:
    request = InferenceRequest(1, 1, 1.0, lambda: None)
    batch = Batch([Item(b"", request, 0, 0.0)], "idle", 1)
    in_flight.begin(batch, SERVICE_SECONDS)
    return batch


def test_a_batch_runs_at_a_free_worker_and_waits_at_a_busy_one() -> None:
    in_flight = InFlight()
    in_flight.set_capacity(2, 4)
    phases = [begin(in_flight).phase for _ in range(3)]
    assert phases == ["running", "running", "waiting"]
    assert in_flight.seconds_until_free() == pytest.approx(3 * SERVICE_SECONDS / 2)


def test_a_waiting_batch_runs_when_a_worker_is_free() -> None:
    in_flight = InFlight()
    first, second, third = begin(in_flight), begin(in_flight), begin(in_flight)
    assert in_flight.end(first, 0) is second
    assert (second.phase, third.phase) == ("running", "waiting")
    assert in_flight.end(third, 0) is None, "it had no worker to free"
    assert in_flight.end(second, 0) is None
    assert not in_flight.batches
    assert in_flight.seconds_until_free() == 0.0


def test_a_worker_is_soon_free_for_one_batch_when_its_own_is_finishing() -> None:
    in_flight = InFlight()
    first = begin(in_flight)
    assert not in_flight.is_worker_soon_free
    in_flight.mark_finishing(first)
    assert in_flight.is_worker_soon_free
    second = begin(in_flight)
    assert second.round_trip_seconds == pytest.approx(PREFETCH_SECONDS + SERVICE_SECONDS)
    assert not in_flight.is_worker_soon_free, "one batch leaves early, not two"


def test_no_worker_is_soon_free_behind_an_overdue_batch() -> None:
    in_flight = InFlight()
    stuck = begin(in_flight)
    in_flight.mark_finishing(stuck)
    in_flight.mark_overdue(stuck)
    assert not in_flight.is_worker_soon_free
    assert in_flight.seconds_until_free() == pytest.approx(SERVICE_SECONDS)
    in_flight.end(stuck, 0)
    assert in_flight.is_worker_soon_free
