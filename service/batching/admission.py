"""Who is let into a version's queue: what has room, and can be answered in time."""

import math

from service.batching.latency_model import LatencyModel
from service.batching.queue import BatchLimits, InferenceRequest, ItemQueue
from service.domain.backend import Target
from service.errors.gateway import DeadlineUnreachable, QueueFull


class Admission:
    """Refuses at the door what would be refused later, when waiting for it has cost the others time."""

    def __init__(self, target: Target, queue: ItemQueue, forecast: LatencyModel, limits: BatchLimits) -> None:
        self._target = target
        self._queue = queue
        self._latency_model = forecast
        self._limits = limits

    def require_room(self, num_items: int, num_bytes: int, now: float) -> None:
        """Raise QueueFull if so many more do not fit beside those that wait."""
        if self._fits(num_items, num_bytes):
            return
        self._queue.drop_unwanted(now)  # callers that left must not keep others out
        if not self._fits(num_items, num_bytes):
            wait_seconds = max(math.ceil(self._latency_model.seconds_until(len(self._queue), 0)), 1)
            raise QueueFull(str(self._target), len(self._queue), wait_seconds)

    def require_time(self, call: InferenceRequest, num_items: int, now: float) -> None:
        """Raise DeadlineUnreachable if so much is to be done before the call's that they would come too late."""
        call.submitted_at = now
        call.foreseen_seconds = seconds = self._latency_model.seconds_until(self._queue.num_before(call), num_items)
        left = call.deadline - now
        if seconds * self._latency_model.margin > left:
            # In so much time what is too much now will be done, and the same request would get through.
            wait_seconds = max(math.ceil(seconds * self._latency_model.margin - left), 1)
            raise DeadlineUnreachable(max(round(left * 1000), 0), round(seconds * 1000), wait_seconds)

    def _fits(self, num_items: int, num_bytes: int) -> bool:
        return (
            len(self._queue) + num_items <= self._limits.max_queue_items
            and self._queue.num_bytes + num_bytes <= self._limits.max_queue_bytes
        )
