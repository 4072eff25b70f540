"""When will it be done: what is in flight, what a batch costs, and how far both have been off so far."""

import math

from service.batching.cost import CostModel
from service.batching.crowd import PeakConcurrency

STRETCH_BOUNDS = (0.25, 8.0)
STRETCH_WEIGHT = 0.1
# By what factor three answers in a thousand take longer than was foreseen. A queue that is let grow until the forecast
# just meets the deadline misses it half of the time, and what comes too late was computed for nothing.
MARGIN_START = 1.5
MARGIN_BOUNDS = (1.1, 4.0)
MARGIN_STEP = 0.1
MARGIN_QUANTILE = 0.997
# Images that wait anyway are hurt less by a longer batch than by the throughput that short ones cost.
SHARE_OF_WAIT = 0.5
# A batch is worth its while if it takes at least so many times what it costs by itself.
WORTH = 2
# Limits are multiples of this: graphs are compiled for a few round sizes, and others go through them in pieces.
ROUND = 8
# Before it should be back, a batch is almost back: about what lies between a worker's answer and its next batch if that
# leaves after it, both ways and their turns of the event loop. uvloop's alarms make it 0.5 to 2.5 ms.
MOMENT_SECONDS = 0.001


class LatencyModel:
    """Foresees when images are answered by `num_workers` workers that `num_slots` batches keep busy."""

    def __init__(self, max_batch_size: int, latency_objective_ms: int) -> None:
        self.cost = CostModel()
        self.limit = max_batch_size
        self._max_batch_size = max_batch_size
        self._objective_seconds = latency_objective_ms / 1000
        self._num_workers = 1
        self._num_slots = 1
        self._num_running = 0
        self._num_almost_back = 0  # of those
        self._num_items_running = 0
        self._seconds_running = 0.0  # that workers are expected to spend on those that are not almost back
        self._stretch = 1.0  # round trips that were over round trips that were expected: a moving average
        self.margin = MARGIN_START
        self._crowd = PeakConcurrency()

    def set_capacity(self, num_workers: int, num_slots: int) -> None:
        """Reckon with so many workers, and so many batches in flight at most."""
        self._num_workers = num_workers
        self._num_slots = num_slots

    def begin(self, num_items: int) -> "InFlightEstimate":
        """Take in that a batch goes to the backend, and return what is expected of it."""
        service_seconds = self.cost.seconds(num_items)
        expected = InFlightEstimate(num_items, service_seconds, self._seconds_until_free() + service_seconds)
        self._num_running += 1
        self._num_items_running += num_items
        self._seconds_running += service_seconds
        return expected

    @property
    def is_worker_soon_free(self) -> bool:
        """Tell whether a worker is free, or should be in a moment."""
        return self._num_running - self._num_almost_back < self._num_workers

    def set_almost_back(self, expected: "InFlightEstimate", is_almost_back: bool) -> None:
        """Take in that the batch should be back in a moment, or, if it never came, that nobody knows when."""
        sign = is_almost_back - expected.is_almost_back
        expected.is_almost_back = is_almost_back
        self._num_almost_back += sign
        self._seconds_running -= sign * expected.service_seconds

    def end(self, expected: "InFlightEstimate") -> None:
        """Take in that the batch is back."""
        self.set_almost_back(expected, False)
        self._num_running -= 1
        self._num_items_running -= expected.num_items
        self._crowd.shrink(self._num_items_running)
        self._seconds_running = self._seconds_running - expected.service_seconds if self._num_running else 0.0

    def learn(self, expected: "InFlightEstimate", service_seconds: float, round_trip_seconds: float) -> None:
        """Take in what an answered batch took: with its worker, and altogether."""
        if self.cost.is_known:  # else nothing was expected in earnest
            lowest, highest = STRETCH_BOUNDS
            news = min(max(round_trip_seconds / expected.round_trip_seconds, lowest), highest)
            self._stretch += STRETCH_WEIGHT * (news - self._stretch)
        self.cost.learn(expected.num_items, service_seconds)
        # An image may find all slots taken, then wait behind the batches before it, and then comes its own.
        num_turns = self._num_slots / self._num_workers + 1
        self.limit = min(self.cost.limit(self._objective_seconds / num_turns), self._max_batch_size)

    def compare(self, foreseen_seconds: float, actual_seconds: float) -> None:
        """Take in how long an image that had to wait took, to know how far to trust the next forecast.

        The margin follows a quantile of the ratio by steps that balance there (Robbins and Monro 1951).
        """
        if foreseen_seconds > 0:
            exceeded = actual_seconds > self.margin * foreseen_seconds
            step = MARGIN_STEP * (MARGIN_QUANTILE if exceeded else MARGIN_QUANTILE - 1)
            lowest, highest = MARGIN_BOUNDS
            self.margin = min(max(self.margin + step, lowest), highest)

    def see(self, num_waiting: int) -> None:
        """Take in that so many images wait."""
        self._crowd.see(num_waiting + self._num_items_running)

    def seconds_until(self, num_before: int, num_items: int) -> float:
        """Return how long it takes until `num_items` more are answered, with `num_before` in the queue before them."""
        limit = self.limit_for(num_before + num_items)
        num_batches = math.ceil(num_items / limit)
        own = self.cost.fixed_seconds * num_batches + self.cost.per_item_seconds * num_items
        before = self.cost.fixed_seconds * (num_before / limit) + self.cost.per_item_seconds * num_before
        num_side_by_side = max(1, min(num_batches, self._num_workers))
        return self._stretch * (self._seconds_until_free() + before / self._num_workers + own / num_side_by_side)

    def limit_for(self, num_waiting: int) -> int:
        """Return how many images a batch may hold while so many wait.

        As many as the objective allows, or more: as take SHARE_OF_WAIT of the time that all who wait will take. But not
        so many of those that are there that there is none left for each worker to go on with.
        """
        if not self.cost.is_known:
            return self.limit
        wait_seconds = self.cost.seconds(num_waiting) / self._num_workers
        within = (SHARE_OF_WAIT * wait_seconds - self.cost.fixed_seconds) / self.cost.per_item_seconds
        return min(max(self.limit, math.floor(within)), self._part_of_crowd(num_waiting), self._max_batch_size)

    def _part_of_crowd(self, num_waiting: int) -> int:
        num_images = max(self._crowd.size, num_waiting + self._num_items_running)
        worth = WORTH * (self.cost.fixed_seconds + MOMENT_SECONDS) / self.cost.per_item_seconds
        return ROUND * math.ceil(max(num_images / (2 * self._num_workers), worth) / ROUND)

    def share_of(self, num_waiting: int) -> int:
        """Return how many of those that wait one worker should take, for all workers to be done at about one time.

        Where one takes all, it works on them alone while the others answer what comes in one by one.
        """
        return math.ceil((num_waiting + self._num_items_running) / self._num_workers)

    def limit_within(self, seconds: float, limit: int) -> int:
        """Return how many images, `limit` at most, a batch may hold that is to be answered within `seconds`.

        The whole limit where that is too short for a single one: what is late anyway must not slow the others down.
        """
        left = seconds / self._stretch - self._seconds_until_free()
        if self.cost.seconds(limit) <= left or self.cost.seconds(1) > left:
            return limit
        return max(1, math.floor((left - self.cost.fixed_seconds) / self.cost.per_item_seconds))

    def _seconds_until_free(self) -> float:
        if self._num_running < self._num_workers:
            return 0.0
        return MOMENT_SECONDS if self.is_worker_soon_free else self._seconds_running / self._num_workers


class InFlightEstimate:
    """What is expected of one batch in flight."""

    __slots__ = ("is_almost_back", "num_items", "round_trip_seconds", "service_seconds")

    def __init__(self, num_items: int, service_seconds: float, round_trip_seconds: float) -> None:
        self.num_items = num_items
        self.service_seconds = service_seconds
        self.round_trip_seconds = round_trip_seconds
        self.is_almost_back = False
