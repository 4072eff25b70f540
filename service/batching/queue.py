"""What waits for a batch: calls, their images, and the order in which they go."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from service.domain.backend import ItemError, ItemResult, Priority
from service.errors.gateway import GatewayError
from service.telemetry.labels import CloseReason
from service.telemetry.tracing import OpenSpan

_sequence = count()


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one batch and one queue may hold, how long a batch may take and an image should."""

    max_batch_size: int
    max_batch_bytes: int
    max_queue_items: int
    max_queue_bytes: int
    backend_timeout_ms: int
    latency_objective_ms: int

    def __post_init__(self) -> None:
        if min(self.max_batch_size, self.max_batch_bytes, self.max_queue_items, self.max_queue_bytes) < 1:
            raise ValueError(f"every limit must be at least 1: {self}")


def _told() -> None:
    """Do nothing: who wanted to know has been told."""


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """When a batch was sent, for how long it was away, and what of that its worker spent on it."""

    sent_at: float
    seconds: float
    decode_seconds: float
    compute_seconds: float


@dataclass(slots=True, eq=False)
class InferenceRequest:
    """One caller's images: filled result by result, done when the last is in or when nobody wants them any more."""

    num_items: int
    top_k: int
    deadline: float  # time.monotonic(); the event loop's own clock ticks in milliseconds
    on_done: Callable[[], None]  # called once, at the end; must not raise
    priority: Priority = "normal"
    span: OpenSpan | None = None  # of the request, if it is recorded
    is_done: bool = False
    error: Exception | None = None  # why it ended before its last result
    results: list[ItemResult | GatewayError | None] = field(init=False)
    num_missing: int = field(init=False)
    order: tuple[int, float, int] = field(
        init=False
    )  # the larger, the sooner: earliest deadline first, then first come
    queue_seconds: float = 0.0  # of its images, the longest
    compute_seconds: float = 0.0  # of its batches, the longest round trip
    largest_batch: int = 0
    num_batches: int = 0
    batch_limit: int = 0  # of its last batch, like the next
    close_reason: CloseReason = "idle"
    sent_at: float = 0.0  # when its last batch went to the backend; 0 before
    last_batch: BatchTimes | None = None  # that was answered
    submitted_at: float = 0.0
    foreseen_seconds: float = 0.0  # until it is answered; 0 where nothing was ahead

    def __post_init__(self) -> None:
        self.results = [None] * self.num_items
        self.num_missing = self.num_items
        self.order = (0 if self.priority == "normal" else -1, -self.deadline, -next(_sequence))

    def sift(self, images: Sequence[bytes | ItemError]) -> list[bytes | None]:
        """Answer those of the call's images that have an error already; return the bytes of the others."""
        if len(images) == 1 and isinstance(images[0], bytes):
            return [images[0]]
        for index, image in enumerate(images):
            if isinstance(image, ItemError):
                self.answer(index, image)
        return [None if isinstance(image, ItemError) else image for image in images]

    def note(self, num_items: int, limit: int, reason: CloseReason, times: BatchTimes) -> None:
        """Take in what is known of a batch that has answers for it."""
        self.num_batches += 1
        self.largest_batch = max(self.largest_batch, num_items)
        self.compute_seconds = max(self.compute_seconds, times.seconds)
        self.batch_limit, self.close_reason, self.last_batch = limit, reason, times

    def answer(self, index: int, result: ItemResult | GatewayError) -> None:
        """Put in one image's result; the last one ends the call."""
        self.results[index] = result
        self.num_missing -= 1
        if not self.num_missing:
            self.end()

    def end(self, error: Exception | None = None) -> None:
        """End the call, unless it has ended; whatever of it still waits is dead from here on."""
        if not self.is_done:
            self.is_done, self.error = True, error
            on_done, self.on_done = self.on_done, _told  # what is behind it may well lead back here
            on_done()


@dataclass(slots=True, eq=False)
class Item:
    """One image in the queue."""

    payload: bytes
    call: InferenceRequest
    index: int  # of its place in the call
    queued_at: float

    def is_wanted(self, now: float) -> bool:
        """Tell whether its caller still waits and its deadline lies ahead."""
        return not self.call.is_done and self.call.deadline > now

    def wait_again(self, now: float) -> None:
        """Begin to wait anew, after an attempt that failed; that took its time too, but was no waiting."""
        self.call.queue_seconds = max(self.call.queue_seconds, self.call.sent_at - self.queued_at)
        self.queued_at = now


class ItemQueue:
    """Images in the order in which they are to go: normal before low, earliest deadline first, then first come."""

    def __init__(self) -> None:
        self._items: list[Item] = []  # the next one last, where a list gives and takes without moving the others
        self.num_bytes = 0

    def __len__(self) -> int:
        """Return how many images wait."""
        return len(self._items)

    def num_before(self, call: InferenceRequest) -> int:
        """Return how many images would go before those of `call`."""
        return len(self._items) - self._place(call)

    def push(self, items: Sequence[Item], num_bytes: int) -> None:
        """Put one call's images, `num_bytes` altogether, in their place; they stay together."""
        place = self._place(items[0].call)
        self._items[place:place] = reversed(items)
        self.num_bytes += num_bytes

    def peek(self) -> Item:
        """Return the image that goes next."""
        return self._items[-1]

    def pop(self) -> Item:
        """Take the image that goes next."""
        item = self._items.pop()
        self.num_bytes -= len(item.payload)
        return item

    def drop_unwanted(self, now: float) -> None:
        """Forget the images whose callers left or whose deadline passed."""
        self._items = [item for item in self._items if item.is_wanted(now)]
        self.num_bytes = sum(len(item.payload) for item in self._items)

    def clear(self) -> Sequence[Item]:
        """Take everything."""
        items, self._items, self.num_bytes = self._items, [], 0
        return items

    def oldest_age(self, now: float) -> float:
        """Return for how many seconds the image that came first has waited; 0 when none waits."""
        return now - min((item.queued_at for item in self._items), default=now)

    def _place(self, call: InferenceRequest) -> int:
        if not self._items or call.order < self._items[0].call.order:
            return 0  # nearly always: equal priorities, deadlines in the order of arrival
        return bisect_left(self._items, call.order, key=lambda item: item.call.order)
