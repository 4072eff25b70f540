"""Admission control: refuses at submission what the queue cannot hold or the backend cannot answer in time."""

import math
from collections.abc import Sequence

from service.batching.batch_former import BatchFormer, InFlight
from service.batching.large_images import LargeImages
from service.batching.latency_model import LatencyModel
from service.batching.over_share import over_share
from service.batching.queue import BatchLimits, ItemQueue
from service.batching.request import InferenceRequest, Item
from service.domain.backend import Target
from service.errors.overload import DeadlineUnreachable, QueueFull, ShareExceeded


class Admission:
    """Refuses early, so that a request which will fail does not delay the others; an idle backend refuses none."""

    def __init__(
        self,
        target: Target,
        limits: BatchLimits,
        queue: ItemQueue,
        in_flight: InFlight,
        model: LatencyModel,
        large: LargeImages,
        former: BatchFormer,
    ) -> None:
        self._limits = limits
        self._target = target
        self._queue = queue
        self._in_flight = in_flight
        self._model = model
        self._large = large
        self._former = former

    def make_room(
        self, request: InferenceRequest, num_items: int, num_bytes: int, now: float
    ) -> Sequence[InferenceRequest]:
        """Drop queued items whose callers left. Return the requests to push out if the new ones still do not fit.

        Raises:
            QueueFull, ShareExceeded: none may be pushed out for this request.
        """
        self._queue.drop_unwanted(now)
        if self._queue.has_room(num_items, num_bytes):
            return ()
        leaving, is_over_share = over_share(self._queue.lanes, self._limits, request.caller, num_items, num_bytes)
        if is_over_share:
            raise ShareExceeded(str(self._target), self._wait_seconds(self._queue.num_before(request)))
        if not leaving:
            num_waiting = self._queue.num_items
            raise QueueFull(str(self._target), num_waiting, self._wait_seconds(num_waiting))
        return leaving

    def push_out(self, requests: Sequence[InferenceRequest]) -> None:
        """End requests that hold more than their callers' share of the queue."""
        self._queue.remove(requests)
        for request in requests:
            request.end(ShareExceeded(str(self._target), self._wait_seconds(self._queue.num_before(request))))

    def require_time(self, request: InferenceRequest, items: Sequence[Item], now: float) -> None:
        """Raise DeadlineUnreachable if the work ahead of the request leaves too little time for it."""
        large_pixels = sum([item.pixels for item in items if item.is_large])
        num_usual = sum([not item.is_large for item in items]) if large_pixels else len(items)
        seconds = self._seconds_until(self._queue.num_before(request), num_usual) if num_usual else 0.0
        if large_pixels:
            seconds = max(seconds, self._seconds_until_large(large_pixels))
        request.expect(now, seconds)
        left, needed = request.deadline - now, seconds * self._model.margin
        if needed > left:
            # By then the backlog has shrunk by what makes the deadline unreachable now.
            wait_seconds = max(math.ceil(needed - left), 1)
            raise DeadlineUnreachable(max(round(left * 1000), 0), round(seconds * 1000), wait_seconds)

    def _wait_seconds(self, num_waiting: int) -> int:
        """Return when so many queued items should be answered, in whole seconds for a `Retry-After`."""
        return max(math.ceil(self._seconds_until(num_waiting, 0)), 1)

    def _seconds_until(self, num_before: int, num_items: int) -> float:
        """Return how long it takes to answer `num_before` queued items and then `num_items` more."""
        model, num_workers = self._model, self._in_flight.num_usual_workers
        limit = self._former.limit_for(num_before + num_items)
        num_batches = math.ceil(num_items / limit)
        own = model.fixed_seconds * num_batches + model.per_item_seconds * num_items
        before = model.fixed_seconds * (num_before / limit) + model.per_item_seconds * num_before
        num_parallel = max(1, min(num_batches, num_workers))
        return model.stretch * (self._in_flight.seconds_until_free() + before / num_workers + own / num_parallel)

    def _seconds_until_large(self, num_pixels: int) -> float:
        """Return how long it takes to answer the large images that wait or run, and then so many pixels more."""
        running = sum([batch.items[0].pixels for batch in self._in_flight.batches if batch.is_large])
        return self._large.seconds(running + self._queue.large_pixels + num_pixels) / self._in_flight.most_large
