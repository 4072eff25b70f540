"""HTTP/1.1 on a socket: uvicorn's protocol on httptools, with bounds on the head of a request that it lacks.

uvicorn bounds neither how long a head may be nor how long it may take, and httptools gathers it in memory.
It also tells of a client that left only to those who keep a task waiting for that; here a function is called.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.http.heads import Fields, Head, KnownHeads, without_upgrade

KIBIBYTE = 1024
LAST_LOOK_SECONDS = 0.05  # a loop that was held up rings its timers before it reads what came meanwhile
# In a scope's extensions:
WHEN_GONE = "torchgate.when_gone"  # takes what is to be called if the client leaves
WHEN_STOPPING = "torchgate.when_stopping"  # takes what is to be called if the server begins to stop
HANG_UP = "torchgate.hang_up"  # ends the connection, whatever is still to be sent


class _NobodyWaits:
    def set(self) -> None:
        """Wake nobody."""


class WholeRequest:
    """A request that came in one piece, answered without a task, a queue and messages of its own.

    An application that answers such requests says which by `whole_routes`, their methods and paths, and gets them by
    `answer_whole`, which must not raise; it may keep heads that came before in `known_heads`. To the connection a
    request is what a RequestResponseCycle is: the same attributes say how far it is.
    """

    __slots__ = ("_protocol", "body", "disconnected", "fields", "head", "keep_alive", "response_complete")
    message_event = _NobodyWaits()

    def __init__(self, protocol: "BoundedHttpProtocol", head: Head, fields: Fields, body: bytes) -> None:
        self._protocol: BoundedHttpProtocol | None = protocol
        self.head = head
        self.fields = fields
        self.body = body
        self.keep_alive = head.keep_alive
        self.response_complete = False
        self.disconnected = False

    def when_gone(self, call: Callable[[], None]) -> None:
        """Have `call` called if the client leaves before it is answered."""
        if self._protocol is not None:
            self._protocol.when_gone = call

    def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send the answer; its headers, with a Content-Length among them, are known to be well-formed."""
        protocol, self._protocol = self._protocol, None  # it leads back here
        assert protocol is not None, "answered twice"
        lines = b"\r\n".join(map(b": ".join, (*protocol.server_state.default_headers, *headers)))
        end = b"\r\n\r\n" if self.keep_alive else b"\r\nconnection: close\r\n\r\n"
        protocol.transport.write(b"".join((STATUS_LINE[status], lines, end, body)))
        self._end(protocol)
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()

    def drop(self) -> None:
        """Say nothing: nobody is there."""
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            self._end(protocol)

    def _end(self, protocol: "BoundedHttpProtocol") -> None:
        self.response_complete = True
        protocol.when_gone = None


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses a request whose head is too long, hangs up on one that does not come, and ignores wishes to upgrade."""

    max_head_bytes: ClassVar[int] = 64 * KIBIBYTE
    max_head_seconds: ClassVar[float] = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Bytes since the parser last got somewhere: to the end of a head, of a piece of a body, of a message.
        self._num_idle_bytes = 0
        self._got_somewhere = False
        self._awaits_head = False
        self._is_between_messages = True
        self._alarm: asyncio.TimerHandle | None = None
        self._idle_since: float | None = None  # since when nobody asks, by the event loop's clock
        self.when_gone: Callable[[], None] | None = None  # called if the client leaves before its answer
        self.when_stopping: Callable[[], None] | None = None
        self._whole_routes: frozenset[tuple[bytes, bytes]] = getattr(self.app, "whole_routes", frozenset())
        self._known_heads: KnownHeads | None = getattr(self.app, "known_heads", None)
        # Of a body, as long as all of it may come together with its head.
        self._pieces: list[bytes] | None = None
        self._data = b""  # what is parsed just now, if a head begins it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._awaits_head = True
        self._set_alarm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting, and tell who wanted to know."""
        self._stop_waiting()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        if self.when_gone is not None:
            self.when_gone()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Have the answer be the last, and come to its end if it has none of its own; who does not read it is left."""
        super().shutdown()
        if self.when_stopping is not None:
            self.when_stopping()
            if self.flow.write_paused:
                self.transport.abort()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request; a timer that is set already will find out since when."""
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_again_in(self.timeout_keep_alive)

    def _unset_keepalive_if_required(self) -> None:
        """Leave the timer: setting and cancelling one for each request cost as much as reading it."""

    def timeout_keep_alive_handler(self, is_last_look: bool = False) -> None:
        """Hang up on who asks no more; a request that came while the loop was held up is read first."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return  # the next answer sets it anew
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_again_in(left)
        elif is_last_look:
            super().timeout_keep_alive_handler()
        else:
            self._look_again_in(LAST_LOOK_SECONDS, True)

    def _look_again_in(self, seconds: float, is_last_look: bool = False) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler, is_last_look)

    def data_received(self, data: bytes) -> None:
        """Parse what came; what is neither body nor the end of a head may not become too much."""
        if self._is_between_messages:
            if self._answered_by_known_head(data):
                return
            self._data = data = without_upgrade(data)
        self._got_somewhere = False
        super().data_received(data)
        self._data = b""
        if self._pieces is not None and not self.transport.is_closing():
            self._begin_cycle()  # there is more to come
        if self._got_somewhere:
            self._num_idle_bytes = 0
            if not self._awaits_head:
                return
        else:
            self._num_idle_bytes += len(data)
        if self._awaits_head and self._alarm is None:
            self._set_alarm()  # only now, since most heads come in one piece and are complete by here
        if self._num_idle_bytes > self.max_head_bytes:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a head."""
        super().on_message_begin()
        self._awaits_head = True
        self._is_between_messages = False
        self._idle_since = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those that follow a chunked body are dropped, nobody here asks for them."""
        if self._awaits_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop waiting: the head is there."""
        self._got_somewhere = True
        self._stop_waiting()
        self._idle_since = None  # the answer to the request before this one may have come while its head did
        if self._may_come_whole():
            self._pieces = []
        else:
            self._begin_cycle()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._got_somewhere = True
        if self._pieces is None:
            super().on_body(body)
        else:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Answer what came in one piece; expect a head next."""
        self._got_somewhere = True
        self._is_between_messages = True
        pieces, self._pieces = self._pieces, None
        if pieces is None:
            super().on_message_complete()
            return
        path, _, query_string = self.url.partition(b"?")
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        head = Head(self.parser.get_method().decode(), path.decode(), query_string, self.headers, keep_alive)
        body = b"".join(pieces)
        if self._known_heads is not None and self._data:
            self._known_heads.remember(self._data, head, len(body))
        self._answer_whole(WholeRequest(self, head, dict(head.headers), body))

    def _answered_by_known_head(self, data: bytes) -> bool:
        """Answer `data` if it is a whole request with a head that the parser has read before; tell whether it is."""
        if self._known_heads is None or not self._may_answer_whole() or self.transport.is_closing():
            return False
        found = self._known_heads.find(data)
        if found is None:
            return False
        self._idle_since = None
        if self._awaits_head:  # the first one of the connection
            self._stop_waiting()
        self._num_idle_bytes = 0
        self._answer_whole(WholeRequest(self, *found))
        return True

    def _answer_whole(self, request: WholeRequest) -> None:
        self.cycle = request  # type: ignore[assignment]
        self.app.answer_whole(request)

    def _may_answer_whole(self) -> bool:
        # A client that does not read its answers is waited for.
        return (self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused

    def _may_come_whole(self) -> bool:
        return (
            (self.parser.get_method(), self.url.partition(b"?")[0]) in self._whole_routes
            and self._may_answer_whole()
            and not self.expect_100_continue
        )

    def _begin_cycle(self) -> None:
        """Hand the request to the application as ASGI has it, with the pieces of its body that have come."""
        pieces, self._pieces = self._pieces or (), None
        super().on_headers_complete()
        extensions: Any = {
            WHEN_GONE: self._set_when_gone,
            WHEN_STOPPING: self._set_when_stopping,
            HANG_UP: self.transport.abort,
        }
        self.scope["extensions"] = extensions
        for piece in pieces:
            super().on_body(piece)

    def _set_when_gone(self, call: Callable[[], None] | None) -> None:
        self.when_gone = call

    def _set_when_stopping(self, call: Callable[[], None] | None) -> None:
        self.when_stopping = call

    def _set_alarm(self) -> None:
        self._alarm = self.loop.call_later(self.max_head_seconds, self._ring)

    def _ring(self) -> None:
        self._alarm = self.loop.call_later(LAST_LOOK_SECONDS, self._refuse, b"408 Request Timeout")

    def _stop_waiting(self) -> None:
        self._awaits_head = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _refuse(self, status: bytes) -> None:
        """Say why and hang up; without a word where nothing was asked, or where another answer is still due."""
        is_head = self._awaits_head
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if is_head:
                # The answer to the request before this one is the last on this connection.
                self.cycle.keep_alive = False
                self.flow.pause_reading()
            else:
                self.transport.close()
            return
        if not self._is_between_messages:
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self.transport.close()
