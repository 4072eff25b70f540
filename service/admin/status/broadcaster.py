"""Sends status events to listeners: one snapshot a second for all of them, and none while nobody listens."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from service.errors.gateway import ListenersFull

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StatusSnapshot:
    """The gateway's status at one time, in JSON: `now` for the page, and `point` for the plots' history."""

    now: bytes
    detailed_now: bytes  # for callers who may read details
    point: bytes


@dataclass(frozen=True)
class BroadcastLimits:
    """Limits on listeners and history."""

    most_listeners: int = 32
    period_seconds: float = 1.0
    num_points: int = 300
    # This frees the place of a vanished listener. A living one reconnects at once, as browsers do.
    longest_seconds: float = 300.0
    # After a longer pause the plots start empty.
    longest_gap_seconds: float = 15.0


class Listener:
    """One client of the event stream, which awaits `next` again and again."""

    def __init__(self, broadcaster: "StatusBroadcaster", caller: str, until: float, *, may_read: bool) -> None:
        self.caller = caller
        self._broadcaster = broadcaster
        self._may_read = may_read
        self._until = until
        self._is_ended = False
        self.news = asyncio.Event()

    def end(self) -> None:
        """End the stream: `next` returns None from now on."""
        self._is_ended = True
        self.news.set()

    async def next(self) -> bytes | None:
        """Return the newest event, or None at the end. A slow listener misses events in between."""
        await self.news.wait()
        self.news.clear()
        if self._is_ended or time.monotonic() > self._until:
            return None
        return self._broadcaster.detailed_event if self._may_read else self._broadcaster.event


class StatusBroadcaster:
    """Takes snapshots while somebody listens, and keeps the last minutes for new listeners."""

    def __init__(self, look: Callable[[], Awaitable[StatusSnapshot]], limits: BroadcastLimits | None = None) -> None:
        self._look = look
        self._limits = limits or BroadcastLimits()
        self._listeners: set[Listener] = set()
        self._points: deque[bytes] = deque(maxlen=self._limits.num_points)
        self._looked_at = 0.0
        self._looking: asyncio.Task[None] | None = None
        self.event = b""
        self.detailed_event = b""

    @property
    def history(self) -> bytes:
        """Return the event with the plots' history."""
        return b"event: history\ndata: [" + b",".join(self._points) + b"]\n\n"

    @contextmanager
    def listening(self, caller: str, *, may_read: bool = False) -> Iterator[Listener]:
        """Give a listener until the block ends; one who `may_read` details gets them.

        `caller` is whose place it takes: the name of a key's owner, or an address.

        Raises:
            ListenersFull: the caller has as many listeners as there are free places, or there are none.
        """
        num_own = sum(listener.caller == caller for listener in self._listeners)
        num_free = self._limits.most_listeners - len(self._listeners)
        if num_own >= num_free:  # so that there is always a place for somebody else
            raise ListenersFull(self._limits.most_listeners, num_free, num_own)
        now = time.monotonic()
        listener = Listener(self, caller, now + self._limits.longest_seconds, may_read=may_read)
        if now - self._looked_at > self._limits.longest_gap_seconds:
            self._points.clear()
        self._listeners.add(listener)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._keep_looking())
            self._looking.add_done_callback(self._stopped_looking)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._looked_at + self._limits.period_seconds - time.monotonic())
            self._looked_at = time.monotonic()
            look = await self._look()
            self._points.append(look.point)
            self.event, self.detailed_event = _event(look.point, look.now), _event(look.point, look.detailed_now)
            for listener in self._listeners:
                listener.news.set()

    def _stopped_looking(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            return
        logger.error("the status page's figures could not be read", exc_info=task.exception())
        if self._looking is task:  # otherwise its listeners have left, and new ones have a task of their own
            self._looking = None
            for listener in self._listeners:
                listener.end()


def _event(point: bytes, now: bytes) -> bytes:
    return b'event: look\ndata: {"point":' + point + b',"now":' + now + b"}\n\n"
