"""When the next batch may leave for a worker that is about to be free, by alarms that the test rings."""

import pytest

from service.batching.batch_former import Batch
from service.batching.latency_model import MOMENT_SECONDS, LatencyModel
from service.batching.prefetch import LONGEST_SECONDS, Prefetch
from tests.service.alarms import Alarms

SERVICE_SECONDS = 0.005


class Stage:
    """A forecast and a head start for one worker, as the batcher has them."""

    def __init__(self, service_seconds: float = SERVICE_SECONDS) -> None:
        self.forecast = LatencyModel(max_batch_size=4, latency_objective_ms=1000)
        self.forecast.set_capacity(1, 3)
        first = self.forecast.begin(1)
        self.forecast.learn(first, service_seconds, service_seconds)
        self.forecast.end(first)
        self.alarms = Alarms()
        self.num_notices = 0
        self.prefetch = Prefetch(self.forecast, self.notice, self.alarms.call_later)
        self.num_running = 0

    def notice(self) -> None:
        self.num_notices += 1

    def begin(self) -> Batch:
        batch = Batch([], "idle", 1)
        batch.expected = self.forecast.begin(1)
        self.prefetch.begin(batch, has_worker=not self.num_running)
        self.num_running += 1
        return batch

    def end(self, batch: Batch) -> None:
        assert batch.expected is not None
        self.num_running -= 1
        self.prefetch.end(batch)
        self.forecast.end(batch.expected)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_notice_is_given_a_moment_before_the_worker_should_be_free(stage: Stage) -> None:
    stage.begin()
    assert not stage.forecast.is_worker_soon_free
    assert stage.alarms.times() == pytest.approx([SERVICE_SECONDS - MOMENT_SECONDS])
    stage.alarms.ring(SERVICE_SECONDS)
    assert stage.num_notices == 1
    assert stage.forecast.is_worker_soon_free


def test_a_batch_that_waits_for_its_worker_is_reckoned_from_when_that_is_free(stage: Stage) -> None:
    first = stage.begin()
    stage.alarms.ring(SERVICE_SECONDS)
    second = stage.begin()
    assert second.expected is not None
    assert second.expected.round_trip_seconds == pytest.approx(MOMENT_SECONDS + SERVICE_SECONDS)
    assert not stage.forecast.is_worker_soon_free, "one goes ahead, not two"
    stage.end(first)
    assert stage.alarms.times() == pytest.approx([2 * SERVICE_SECONDS - MOMENT_SECONDS])
    stage.alarms.ring(2 * SERVICE_SECONDS)
    assert stage.num_notices == 2


def test_one_that_never_begins_ends_without_notice(stage: Stage) -> None:
    first, second = stage.begin(), stage.begin()
    stage.end(second)
    assert len(stage.alarms.times()) == 1
    stage.end(first)
    assert not stage.alarms.times()
    assert not stage.num_notices


def test_images_are_not_sent_after_one_that_is_late_by_as_much_as_it_should_take(stage: Stage) -> None:
    stuck = stage.begin()
    stage.alarms.ring(SERVICE_SECONDS - MOMENT_SECONDS)
    assert stage.alarms.times() == pytest.approx([2 * SERVICE_SECONDS])
    stage.alarms.ring(2 * SERVICE_SECONDS)
    assert not stage.forecast.is_worker_soon_free
    assert stage.num_notices == 1
    stage.end(stuck)
    assert stage.forecast.is_worker_soon_free
    assert stage.forecast.share_of(4) == 4


@pytest.mark.parametrize("seconds", [MOMENT_SECONDS / 2, 1.1 * LONGEST_SECONDS])
def test_there_is_none_for_a_batch_so_short_or_so_long(seconds: float) -> None:
    stage = Stage(seconds)
    stage.begin()
    assert not stage.alarms.times()
