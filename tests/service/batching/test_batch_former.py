"""Which size batches get: the objective, the load of late, and the fair share of each worker."""

import pytest

from service.batching.batch_former import PREFETCH_SECONDS, BatchFormer, InFlight
from service.batching.large_images import LargeImages
from service.batching.latency_model import LatencyModel
from service.batching.queue import ItemQueue
from service.batching.request import Batch, InferenceRequest, Item
from service.errors.gateway import BackendFailed, WorkerDied
from tests.service.limits import limits

PER_ITEM_SECONDS = 0.001
LIMITS = limits(max_batch_size=32, max_batch_bytes=10_000, max_queue_items=2000, max_queue_bytes=10_000)


class Stage:
    """A former for two workers with a known latency model."""

    def __init__(self, fixed_seconds: float = 0.0, latency_objective_ms: int = 1000) -> None:
        self.queue = ItemQueue(LIMITS)
        self.in_flight = InFlight()
        self.in_flight.set_capacity(2, 3)
        self.model = LatencyModel()
        for num_items in (1, 8, 16, 32) * 8:
            seconds = fixed_seconds + PER_ITEM_SECONDS * num_items
            self.model.learn(num_items, seconds, seconds, seconds)
        bounds = limits(max_batch_size=32, max_batch_bytes=10_000, latency_objective_ms=latency_objective_ms)
        self.former = BatchFormer(self.queue, self.in_flight, self.model, LargeImages(), bounds)

    def push(self, num_items: int, deadline: float = 1000.0) -> None:
        request = InferenceRequest(num_items, 1, deadline, lambda: None)
        self.queue.push([Item(b"", request, i, 0.0) for i in range(num_items)], 0)

    def begin(self, num_items: int) -> Batch:
        request = InferenceRequest(num_items, 1, 1000.0, lambda: None)
        batch = Batch([Item(b"", request, i, 0.0) for i in range(num_items)], "full", 32)
        self.in_flight.begin(batch, self.model.seconds(num_items))
        return batch

    def end(self, batch: Batch) -> None:
        self.in_flight.end(batch, self.queue.num_items)


@pytest.mark.parametrize(
    ("num_items", "limit"), [(1, 8), (8, 8), (32, 8), (33, 16), (60, 16), (64, 16), (65, 24), (128, 32), (1000, 32)]
)
def test_each_worker_has_a_second_batch_and_limits_are_round(num_items: int, limit: int) -> None:
    assert Stage().former.limit_for(num_items) == limit


def test_batches_with_a_high_fixed_cost_are_not_cut_short() -> None:
    stage = Stage(fixed_seconds=11 * PER_ITEM_SECONDS - PREFETCH_SECONDS)
    assert stage.former.limit_for(8) == 24, "22 items take twice the cost of a batch by itself"


def test_items_in_flight_count_for_the_load_and_are_remembered() -> None:
    stage = Stage()
    first, second = stage.begin(32), stage.begin(16)
    assert stage.former.limit_for(16) == 16
    stage.end(first)
    stage.end(second)
    assert stage.former.limit_for(16) == 16, "their callers may ask again"


def test_the_remembered_load_falls_slowly() -> None:
    stage = Stage()
    stage.end(stage.begin(64))
    for _ in range(10):
        stage.end(stage.begin(1))
    assert stage.former.limit_for(1) == 16
    for _ in range(200):
        stage.end(stage.begin(1))
    assert stage.former.limit_for(1) == 8


def test_the_objective_limit_leaves_time_to_wait_and_stays_efficient() -> None:
    assert Stage(latency_objective_ms=25).former.objective_limit() == pytest.approx(10, abs=1), "2.5 turns of 10 ms"
    stage = Stage(fixed_seconds=0.005, latency_objective_ms=1)
    assert stage.former.objective_limit() == pytest.approx(5, abs=1), "at most half of the time is fixed"


def test_workers_get_fair_shares() -> None:
    stage = Stage()
    stage.push(6)
    first = stage.former.next(0.0, is_draining=False)
    assert first is not None
    assert (len(first.items), first.reason, first.limit) == (3, "shared", 8)


def test_a_close_deadline_shortens_the_batch() -> None:
    stage = Stage()
    stage.push(8, deadline=0.0025)
    batch = stage.former.next(0.0, is_draining=False)
    assert batch is not None
    assert (len(batch.items), batch.reason) == (2, "deadline")
    late = Stage()
    late.push(8, deadline=0.0005)
    batch = late.former.next(0.0, is_draining=False)
    assert batch is not None
    assert (len(batch.items), batch.reason) == (4, "shared"), "an item that is late anyway does not slow the others"


def test_a_failed_batch_is_split_until_its_item_is_alone() -> None:
    stage = Stage()
    error = BackendFailed("the handler raised")
    assert stage.former.retry(stage.begin(3), error, 0.0)
    halves = [stage.former.next(0.0, is_draining=False) for _ in range(2)]
    assert [each and (len(each.items), each.reason) for each in halves] == [(1, "split"), (2, "split")]
    assert halves[0] is not None
    assert not stage.former.retry(halves[0], error, 0.0), "it was alone"
    assert stage.former.retry(halves[0], WorkerDied("killed"), 0.0), "the death may have another cause"
    again = stage.former.next(0.0, is_draining=False)
    assert again is not None
    assert not stage.former.retry(again, WorkerDied("killed"), 0.0)


def test_a_batch_without_waiting_callers_is_not_tried_again() -> None:
    stage = Stage()
    batch = stage.begin(2)
    batch.items[0].request.end()
    assert not stage.former.retry(batch, BackendFailed("the handler raised"), 0.0)
    assert not stage.former.retries
