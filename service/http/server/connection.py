"""A connection, whatever is asked on it: who is at its other end, and how it ends."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from service.errors.gateway import GatewayError
from service.http.direct_request import DirectApplication, DirectRequest
from service.http.problems import problem
from service.http.request_context import new_id
from service.http.security_headers import LINES
from service.http.server.clients import Client
from service.http.server.intake import ReadFlow
from service.http.server.lasting_answers import Listeners
from service.http.server.timers import IdleTimer
from service.process.listening import PUBLIC

# A client that is still sending when it is refused gets this much more patience, so that it reads the refusal
# instead of a connection reset (RFC 9112, section 9.6).
LINGER_SECONDS = 2.0
LINGER_BYTES = 256 * 1024 * 1024  # of a body
LINGER_HEAD_BYTES = 1024 * 1024


class GatewayState(ServerState):
    """What uvicorn's protocols share, and whether their connections retire: make their next answer their last."""

    def __init__(self) -> None:
        super().__init__()
        self.is_retiring = False


class Connection(HttpToolsProtocol):
    """uvicorn's connection with a client and an end that the client is told of."""

    flow: ReadFlow
    _client: Client  # if there is an application to greet it
    _idle_timer: IdleTimer

    def __init__(
        self,
        when_made: Callable[[], None] | None = None,
        *args: Any,
        listener: str = PUBLIC,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._when_made = when_made  # the handshake of TLS has ended
        self._listener = listener  # the name of the socket that it came in by
        self._application: DirectApplication | None = self.app if isinstance(self.app, DirectApplication) else None
        self._listeners = Listeners()
        self._is_retiring = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Find out who is there; with too many there, tell the client so and hang up."""
        super().connection_made(transport)
        self.flow = ReadFlow(transport)
        self._idle_timer = IdleTimer(self.loop, self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self._idle_timer.idle_since = self.loop.time()
        # Only now: the server may have begun to retire connections during the handshake of TLS.
        self._is_retiring = isinstance(self.server_state, GatewayState) and self.server_state.is_retiring
        if self._when_made is not None:
            self._when_made()
        if self._application is not None:
            self._client = self._application.greet(transport, self._listener)
            refusal = self._application.connections.add(self, self._client, self._listener)
            if refusal is not None:
                self._turn_away(refusal, is_told=self._application.connections.is_told(self))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request in progress."""
        self._idle_timer.close()
        if self._application is not None:
            self._application.connections.remove(self)
        if self._listeners.when_gone is not None:
            self._listeners.when_gone()
        super().connection_lost(exc)

    @property
    def idle_since(self) -> float | None:
        """Since when it has no request, by the event loop's clock; None during one."""
        return self._idle_timer.idle_since

    def retire(self) -> None:
        """Make the current answer the last, or else the next one, and have it say so; leave an idle connection open."""
        self._is_retiring = True
        if isinstance(self.cycle, DirectRequest):
            self.cycle.keep_alive = False
        elif self.cycle is not None:
            say_close(self.cycle)

    def shutdown(self) -> None:
        """Make the current answer the last. End event streams; abandon one whose client does not read it."""
        super().shutdown()
        if self._listeners.when_stopping is not None:
            self._listeners.when_stopping()
            if self.flow.write_paused:
                self.transport.abort()

    def _unset_keepalive_if_required(self) -> None:
        """Leave the timer: see IdleTimer."""

    def say(self, status: bytes) -> None:
        """Send an answer that is not an application's."""
        head = b"HTTP/1.1 %b\r\n%bcontent-length: 0\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, LINES))

    def _turn_away(self, refusal: GatewayError, *, is_told: bool) -> None:
        """Close a connection that is not taken."""
        if not is_told:
            self.transport.abort()
            return
        status, headers, body = problem(refusal, new_id())
        lines = b"\r\n".join(map(b": ".join, headers))
        self.transport.write(b"".join((STATUS_LINE[status], LINES, lines, b"\r\nconnection: close\r\n\r\n", body)))
        self.hang_up()

    def hang_up(self) -> None:
        """Close after all that was said; a client that is still sending is not heard any more."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.transport.set_protocol(_Deaf(self, self.transport))
            self.transport.resume_reading()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:  # TLS
            self.transport.close()


def say_close(cycle: Any) -> None:
    """Have the answer of an ASGI request, if it has not begun, end its connection and say so."""
    cycle.default_headers = [*cycle.default_headers, (b"connection", b"close")]


class _Deaf(asyncio.Protocol):
    """Throws away what a client sends after it was refused."""

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport
        self._num_bytes_left = LINGER_HEAD_BYTES

    def data_received(self, data: bytes) -> None:
        """Throw it away, unless it does not end."""
        self._num_bytes_left -= len(data)
        if self._num_bytes_left < 0:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        self._connection.connection_lost(exc)
