"""Takes TLS connections itself, so that those count whose handshake has not ended.

The event loop's own server tells nobody of a connection before that, and lets it take a minute.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from service.http.direct_request import DirectApplication

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
MOST_AT_ONCE = 64  # connections that are taken before others have their turn
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


class TlsListener:
    """Takes the TLS connections of one socket; uvicorn closes it like a server of the event loop."""

    def __init__(
        self, listening: socket.socket, name: str, tls: ssl.SSLContext, application: DirectApplication, make: Factory
    ) -> None:
        self._listening = listening
        self._name = name
        self._tls = tls
        self._application = application
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[Handshake] = set()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._loop.add_reader(listening, self._take)

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
        await asyncio.gather(*(each.task for each in self._handshakes if each.task is not None), return_exceptions=True)

    def _take(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                plain, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("no connection can be taken for %g s: %s", PAUSE_SECONDS, error)  # noqa: TRY400
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(PAUSE_SECONDS, self._loop.add_reader, self._listening, self._take)
                return
            self._begin(plain, peer)

    def _begin(self, plain: socket.socket, peer: Any) -> None:
        handshake = Handshake(peer, self._loop.time())
        client = self._application.greet(handshake, self._name)
        if self._application.connections.add(handshake, client, self._name) is not None:
            self._application.connections.remove(handshake)  # nobody can be told anything before the handshake
            plain.close()
            return
        plain.setblocking(False)
        with contextlib.suppress(OSError):
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._handshakes.add(handshake)
        handshake.task = self._loop.create_task(self._shake_hands(plain, handshake))

    async def _shake_hands(self, plain: socket.socket, handshake: Handshake) -> None:
        def when_made() -> None:
            self._application.connections.remove(handshake)

        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make(when_made), plain, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except OSError:  # of TLS, too; what strangers do in a handshake is no news
            pass
        finally:
            when_made()
            self._handshakes.discard(handshake)
