"""How long a connection may take with a head, and how long it may stay idle.

A busy event loop runs its timers before it reads what has arrived meanwhile. So both look a second time, a moment
later, before they act.
"""

import asyncio
from collections.abc import Callable

LAST_LOOK_SECONDS = 0.05


class HeadTimer:
    """Calls `expire` unless the head is complete in time."""

    __slots__ = ("_expire", "_loop", "_seconds", "handle")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._expire = expire
        self.handle: asyncio.TimerHandle | None = None  # while it runs

    @property
    def since(self) -> float | None:
        """When it began to wait, by the event loop's clock; None if it does not wait."""
        return None if self.handle is None else self.handle.when() - self._seconds

    def start(self) -> None:
        """Begin to wait for the end of a head."""
        self.handle = self._loop.call_later(self._seconds, self._look_again)

    def stop(self) -> None:
        """Stop waiting."""
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None

    def close(self) -> None:
        """Stop for good; forget the connection, which leads here, so that neither is left for the garbage collector."""
        self.stop()
        self._expire = _do_nothing

    def _look_again(self) -> None:
        self.handle = self._loop.call_later(LAST_LOOK_SECONDS, self._expire)


class IdleTimer:
    """Calls `expire` once there has been no request for a while.

    The connection sets `idle_since`. Setting and cancelling a timer for each request cost as much as parsing it, so the
    timer runs on and finds the new time when it looks.
    """

    __slots__ = ("_expire", "_loop", "_seconds", "handle", "idle_since")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[], None]) -> None:
        self.idle_since: float | None = None  # by the event loop's clock; None during a request
        self._loop = loop
        self._seconds = seconds
        self._expire = expire
        self.handle: asyncio.TimerHandle | None = None  # while it runs

    def start(self) -> None:
        """Look after the whole time."""
        self._look_in(self._seconds)

    def close(self) -> None:
        """Stop for good; forget the connection, which leads here, so that neither is left for the garbage collector."""
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None
        self._expire = _do_nothing

    def _look_in(self, seconds: float, is_last_look: bool = False) -> None:
        self.handle = self._loop.call_later(seconds, self._look, is_last_look)

    def _look(self, is_last_look: bool) -> None:
        self.handle = None
        if self.idle_since is None:
            return  # the next answer starts it anew
        left = self.idle_since + self._seconds - self._loop.time()
        if left > 0:
            self._look_in(left)
        elif is_last_look:
            self._expire()
        else:
            self._look_in(LAST_LOOK_SECONDS, True)


def _do_nothing() -> None:
    """Do nothing."""
