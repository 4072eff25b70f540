"""Takes connections, a few in each turn of the event loop, and counts those of TLS before their handshake has ended.

The event loop's own server takes new connections for as long as there are any: one client that opens them without end
would keep everybody else waiting. It tells nobody of one before the end of its handshake, and lets that take a minute.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from service.http.direct_request import DirectApplication

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
MOST_AT_ONCE = 16  # connections that are taken before others have their turn
BREATH_SECONDS = 0.004  # until the next ones are taken
PAUSE_SECONDS = 1.0  # after one that could not be taken: no memory, or no descriptor

# Makes a connection, given what to call when its handshake has ended.
Factory = Callable[[Callable[[], None]], asyncio.Protocol]


class Handshake:
    """A connection during its TLS handshake; to the others one that is idle. It is its own transport for them."""

    def __init__(self, peer: Any, idle_since: float) -> None:
        self.transport = self
        self.idle_since = idle_since
        self.task: asyncio.Task[None] | None = None
        self._peer = peer

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return who is at the other end."""
        return self._peer if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        """Return 0: no answer waits."""
        return 0

    def close(self) -> None:
        """End it."""
        if self.task is not None:
            self.task.cancel()

    abort = close


class Listener:
    """Takes the connections of one socket; uvicorn closes it like a server of the event loop."""

    def __init__(
        self,
        listening: socket.socket,
        name: str,
        tls: ssl.SSLContext | None,
        application: DirectApplication,
        make: Factory,
    ) -> None:
        self._listening = listening
        self._name = name
        self._tls = tls
        self._application = application
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[Handshake] = set()
        self._opening: set[asyncio.Task[None]] = set()  # kept: the event loop itself holds on to no task
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Take no more connections; handshakes go on."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)

    def end_handshakes(self) -> None:
        """End what has not become a connection yet."""
        for each in list(self._handshakes):
            each.close()

    async def wait_closed(self) -> None:
        """Wait for the end of the handshakes."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._take)

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(seconds, self._resume)

    def _take(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                plain, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("no connection can be taken for %g s: %s", PAUSE_SECONDS, error)  # noqa: TRY400
                self._rest(PAUSE_SECONDS)
                return
            plain.setblocking(False)
            with contextlib.suppress(OSError):
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                self._begin(self._open(plain, lambda: None))
            else:
                self._count(plain, peer)
        self._rest(BREATH_SECONDS)

    def _count(self, plain: socket.socket, peer: Any) -> None:
        """Have the connection count as one that is idle until its handshake has ended."""
        handshake = Handshake(peer, self._loop.time())
        client = self._application.greet(handshake, self._name)
        if self._application.connections.add(handshake, client, self._name) is not None:
            self._application.connections.remove(handshake)  # nobody can be told anything before the handshake
            plain.close()
            return
        self._handshakes.add(handshake)
        handshake.task = self._begin(self._shake_hands(plain, handshake))

    def _begin(self, opening: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return task

    async def _shake_hands(self, plain: socket.socket, handshake: Handshake) -> None:
        def when_made() -> None:
            self._application.connections.remove(handshake)

        try:
            await self._open(plain, when_made)
        finally:
            when_made()
            self._handshakes.discard(handshake)

    async def _open(self, plain: socket.socket, when_made: Callable[[], None]) -> None:
        seconds = None if self._tls is None else HANDSHAKE_SECONDS
        # What strangers do in a handshake of TLS is no news.
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(
                lambda: self._make(when_made), plain, ssl=self._tls, ssl_handshake_timeout=seconds
            )
