"""Which items make the next batch, why it closed, and which batches are in flight.

    formed -> waiting -> running <-> finishing -> ended

A batch is waiting while every worker is busy; it is finishing when it should be back any moment.
"""

import math
from collections import deque
from collections.abc import Sequence

from service.batching.large_images import LargeImages
from service.batching.latency_model import LatencyModel
from service.batching.queue import BatchLimits, ItemQueue
from service.batching.request import Batch, Item
from service.errors.gateway import BackendError
from service.telemetry.metric_labels import CloseReason

# A batch is finishing when it should be back within this time: about the round trip between gateway and worker.
# The next batch may leave then, so that the worker finds it when it has answered.
PREFETCH_SECONDS = 0.001
# A long queue: a batch may take this part of the time in which the whole queue is served.
SHARE_OF_WAIT = 0.5
# The items of a batch should take at least this many times its fixed cost; smaller batches waste throughput.
MIN_COST_RATIO = 2
# Batch limits are multiples of this: graphs are compiled for a few round sizes, and other sizes run in pieces.
ROUND = 8
# How far the peak load falls towards the present load with each batch: callers that were just answered may ask again.
PEAK_DECAY = 0.02


class InFlight:
    """The batches in flight, and the workers and slots that bound them. Nobody else keeps count."""

    def __init__(self) -> None:
        self.num_workers = self.num_slots = 1
        self.batches: list[Batch] = []  # in the order in which they were sent
        self.num_usual = 0  # items in flight, large images left out
        self.num_large = 0  # batches that are a large image
        self.peak_load = 0.0  # items queued and in flight at once, of late

    def set_capacity(self, num_workers: int, num_slots: int) -> None:
        """Set how many workers answer and how many batches may be in flight."""
        self.num_workers, self.num_slots = num_workers, num_slots

    @property
    def most_large(self) -> int:
        """Return how many large images may be in flight."""
        return max(self.num_workers // 2, 1)

    @property
    def num_usual_workers(self) -> int:
        """Return how many workers no large image has; 1 where it has the only one."""
        return max(self.num_workers - self.num_large, 1)

    @property
    def is_worker_soon_free(self) -> bool:
        """Return whether a worker is free, or should be within PREFETCH_SECONDS."""
        return sum([batch.phase != "finishing" for batch in self.batches]) < self.num_workers

    def seconds_until_free(self) -> float:
        """Return when a worker should be free for one more batch."""
        if len(self.batches) < self.num_workers:
            return 0.0
        if self.is_worker_soon_free:
            return PREFETCH_SECONDS
        busy = [batch for batch in self.batches if batch.phase != "finishing"]
        others = [batch for batch in busy if not batch.is_large] if self.num_workers > 1 else busy
        return sum([batch.service_seconds for batch in others]) / self.num_usual_workers

    def begin(self, batch: Batch, service_seconds: float) -> None:
        """Add a batch that should keep its worker for `service_seconds`."""
        batch.service_seconds = service_seconds
        batch.round_trip_seconds = self.seconds_until_free() + service_seconds
        batch.phase = "running" if len(self.batches) < self.num_workers else "waiting"
        self.batches.append(batch)
        self._count(batch, 1)

    def mark_finishing(self, batch: Batch) -> None:
        """Mark a batch that should be back any moment."""
        batch.phase = "finishing"

    def mark_overdue(self, batch: Batch) -> None:
        """Count a batch that is far too late as running again: nobody knows when it will be back."""
        batch.phase = "running"

    def end(self, batch: Batch, num_queued: int) -> Batch | None:
        """Remove a batch. Return the waiting batch that its worker takes next, which is running now."""
        load = num_queued + self.num_usual  # between the ends of two batches the load only grows: this is its peak
        self.peak_load = max(load, self.peak_load - PEAK_DECAY * (self.peak_load - load))
        self.batches.remove(batch)
        self._count(batch, -1)
        had_worker, batch.phase = batch.phase != "waiting", "ended"
        if not had_worker:
            return None
        for following in self.batches:
            if following.phase == "waiting":
                following.phase = "running"
                return following
        return None

    def _count(self, batch: Batch, sign: int) -> None:
        if batch.is_large:
            self.num_large += sign
        else:
            self.num_usual += sign * len(batch.items)


class BatchFormer:
    """Forms batches of the most urgent items, in a size that suits the latency objective and the load."""

    def __init__(
        self, queue: ItemQueue, in_flight: InFlight, model: LatencyModel, large: LargeImages, limits: BatchLimits
    ) -> None:
        self._queue = queue
        self._in_flight = in_flight
        self._model = model
        self._large = large
        self._limits = limits
        self._owed_seconds = 0.0  # that the others have next, because large images had their turn
        self.retries: deque[Batch] = deque()  # they go before the queue

    @property
    def has_full_batch(self) -> bool:
        """Return whether the next batch could not be larger if it were formed later, and would hold up nobody else."""
        num_waiting = self._queue.num_usual
        return num_waiting >= self.limit_for(num_waiting) and not self._num_beside_greedy()

    def objective_limit(self) -> int:
        """Return the largest batch that meets the latency objective.

        It is never so small that the fixed cost exceeds half of the whole. Smaller batches cost more throughput than
        they save time, and a growing queue costs far more time than a batch.
        """
        model, in_flight = self._model, self._in_flight
        if not model.is_known:
            return self._limits.max_batch_size
        # An item may find all slots taken. Then it waits for the batches before it, and its own comes last.
        num_turns = in_flight.num_slots / in_flight.num_workers + 1
        in_time = model.max_items(self._limits.latency_objective_ms / 1000 / num_turns)
        return min(max(in_time, math.ceil(model.fixed_seconds / model.per_item_seconds)), self._limits.max_batch_size)

    def limit_for(self, num_waiting: int) -> int:
        """Return how many items a batch may hold while `num_waiting` wait."""
        model, num_workers = self._model, self._in_flight.num_usual_workers
        if not model.is_known:
            return self._limits.max_batch_size
        limit = self.objective_limit()
        worthwhile = MIN_COST_RATIO * (model.fixed_seconds + PREFETCH_SECONDS) / model.per_item_seconds
        if num_waiting > worthwhile and (num_callers := self._num_beside_greedy()):
            # Others come next, however much one caller has: they must not wait for long batches that are all its own.
            share = math.ceil(num_callers / num_workers)  # of one turn of each of them
            return min(limit, max(math.ceil(worthwhile), share), self._limits.max_batch_size)
        if num_waiting > limit:  # in a long queue, longer batches hurt less than the throughput that short ones cost
            limit = max(limit, model.max_items(SHARE_OF_WAIT * model.seconds(num_waiting) / num_workers))
        # A batch holds at most half of a worker's share of the load, so that a second one is ready when it ends.
        load = max(self._in_flight.peak_load, num_waiting + self._in_flight.num_usual) / (2 * num_workers)
        by_load = ROUND * math.ceil(max(load, worthwhile) / ROUND)
        return min(limit, by_load, self._limits.max_batch_size)

    def next(self, now: float, *, is_draining: bool) -> Batch | None:
        """Take the next batch of items whose callers still wait; None if there is none."""
        while self.retries:
            batch = self.retries.popleft()
            if items := batch.wanted_items(now):
                return Batch(items, batch.reason, batch.limit, batch.is_repeated)
        found = self._next_large(now) or self._next_usual(now, is_draining=is_draining)
        # What large images owe to others is forgotten when it turns out that all their callers have left.
        return found or self._next_large(now)

    def retry(self, batch: Batch, error: BackendError, now: float) -> bool:
        """Have a failed batch tried again if one of its items may be the cause; return whether it will be.

        Halves isolate that item. An item alone with a worker that died is sent once more: there may be other causes.
        """
        items = batch.wanted_items(now)
        if not error.may_be_one_image or not items:
            return False
        if half := len(items) // 2:
            self.retries += (Batch(part, "split", len(part)) for part in (items[:half], items[half:]))
            return True
        if error.is_outage and not batch.is_repeated:
            self.retries.append(Batch(items, "split", 1, is_repeated=True))
            return True
        return False

    def seconds(self, batch: Batch) -> float:
        """Return the service time to expect of a batch."""
        return self._large.seconds(batch.items[0].pixels) if batch.is_large else self._model.seconds(len(batch.items))

    def learn(self, batch: Batch, seconds: float, round_trip_seconds: float) -> None:
        """Add the service time of a batch, and its round trip."""
        if batch.is_large:
            self._large.learn(batch, seconds)
        else:
            self._model.learn(len(batch.items), seconds, round_trip_seconds, batch.round_trip_seconds)

    def clear(self) -> Sequence[Item]:
        """Remove and return all items that wait."""
        retried = [item for batch in self.retries for item in batch.items]
        self.retries.clear()
        return [*self._queue.clear(), *retried]

    def _next_large(self, now: float) -> Batch | None:
        queue, in_flight = self._queue, self._in_flight
        if not queue.num_usual:
            self._owed_seconds = 0.0
        if not queue.num_large or self._owed_seconds > 0 or in_flight.num_large >= in_flight.most_large:
            return None
        num_others = queue.num_others_of_each_large
        if (item := queue.pop_large(now)) is None:
            return None
        self._owed_seconds = num_others * self._large.seconds(item.pixels)
        return Batch([item], "large", 1)

    def _next_usual(self, now: float, *, is_draining: bool) -> Batch | None:
        taken: list[Item] = []
        num_bytes = size = limit = 0
        reason: CloseReason = "full"
        while self._queue.num_usual:
            item = self._queue.head()
            if not item.is_wanted(now):
                self._drop(now)
                continue
            if not taken:
                size, limit, reason = self._plan(item.request.deadline - now)
                self._owed_seconds -= self._model.seconds(size)
            elif len(taken) == size:
                return Batch(taken, reason, limit)
            elif num_bytes + len(item.payload) > self._limits.max_batch_bytes:
                return Batch(taken, "full", limit)
            taken.append(self._queue.pop())
            num_bytes += len(item.payload)
        return Batch(taken, "drain" if is_draining else "idle", limit) if taken else None

    def _num_beside_greedy(self) -> int:
        return self._queue.num_beside_greedy() if self._queue.num_callers > 1 else 0

    def _plan(self, seconds_left: float) -> tuple[int, int, CloseReason]:
        """Return the next batch's size, the limit then, and why the size is no larger.

        `seconds_left` is the time to the deadline of its first item.
        """
        model, num_waiting = self._model, self._queue.num_usual
        limit = self.limit_for(num_waiting)
        # The fair share lets all workers finish at about one time, instead of one working through everything.
        share = math.ceil((num_waiting + self._in_flight.num_usual) / self._in_flight.num_usual_workers)
        size = min(share, limit)
        in_time = model.num_in_time(size, seconds_left / model.stretch - self._in_flight.seconds_until_free())
        if in_time < size:
            return in_time, in_time, "deadline"
        return size, limit, "shared" if size < limit else "full"

    def _drop(self, now: float) -> None:
        request = self._queue.drop().request
        if request.deadline <= now and request.expected_seconds:
            self._model.learn_wait(request.expected_seconds, now - request.submitted_at)
