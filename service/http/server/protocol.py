"""HTTP/1.1 on a socket: uvicorn's protocol on httptools, with bounds that uvicorn lacks, and a way around ASGI.

uvicorn bounds neither the length of a head nor the time it takes, and httptools gathers heads in memory.
Requests of an application's `direct_routes` go around ASGI, without a task and a queue of messages for each:

    head complete ─> DirectRequest ─┬─ its turn: begins when what was read is parsed, or its body has ended
                                    └─ behind an unanswered request: waits in uvicorn's pipeline
    early refusal ─> `connection: close`, then the rest of the body is read and thrown away for a while
"""

import asyncio
import re
import urllib.parse
from collections.abc import Iterable
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.http.direct_request import DirectApplication, DirectRequest
from service.http.security_headers import LINES
from service.http.server.lasting_answers import Listeners
from service.http.server.retirement import GatewayState, say_close
from service.http.server.timers import HeadTimer, IdleTimer
from service.process.listening import PUBLIC

# A client that is still sending when it is refused gets this much more patience, so that it reads the refusal
# instead of a connection reset (RFC 9112, section 9.6).
LINGER_SECONDS = 2.0
LINGER_BYTES = 256 * 1024 * 1024
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Refuses heads that are too long or too slow, and ignores requests to upgrade."""

    max_head_bytes: ClassVar[int] = 64 * 1024
    max_head_seconds: ClassVar[float] = 30.0

    def __init__(self, *args: Any, listener: str = PUBLIC, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._listener = listener  # the name of the socket that it came in by
        # Bytes since the parser's last progress: the end of a head, of a piece of a body, or of a message.
        self._num_idle_bytes = 0
        self._has_progressed = False
        self._awaits_head = False
        self._is_between_messages = True
        self._listeners = Listeners()
        self._application: DirectApplication | None = self.app if isinstance(self.app, DirectApplication) else None
        self._parsed: DirectRequest | None = None  # the request that is being parsed, if it is a direct one
        self._next: DirectRequest | None = None  # the request whose turn it is, until it begins
        self._is_held = False  # the pipeline waits until the client reads its answers
        self._num_linger_bytes: int | None = None  # left to read and throw away after an early refusal
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        if self._application is not None:
            self._client = self._application.greet(transport, self._listener)
        self._head_timer = HeadTimer(self.loop, self.max_head_seconds, self._refuse_slow_head)
        self._idle_timer = IdleTimer(self.loop, self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self._is_retiring = isinstance(self.server_state, GatewayState) and self.server_state.is_retiring
        self._awaits_head = True
        self._head_timer.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, and tell the request in progress."""
        self._head_timer.close()
        self._idle_timer.close()
        if self._lingering is not None:
            self._lingering.cancel()
        if self._listeners.when_gone is not None:
            self._listeners.when_gone()
        super().connection_lost(exc)

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

    def data_received(self, data: bytes) -> None:
        """Parse what came; bytes that are neither body nor the end of a head are bounded."""
        if self._is_between_messages:
            data = without_upgrade(data)
        self._has_progressed = False
        super().data_received(data)
        self._begin()
        if self._has_progressed:
            self._num_idle_bytes = 0
            if not self._awaits_head:
                return
        else:
            self._num_idle_bytes += len(data)
        if self._awaits_head and self._head_timer.handle is None:
            self._head_timer.start()  # only now, since most heads come in one piece and are complete by here
        if self._num_idle_bytes > self.max_head_bytes:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a head."""
        super().on_message_begin()
        self._awaits_head = True
        self._is_between_messages = False
        self._idle_timer.idle_since = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers after a chunked body are dropped."""
        if self._awaits_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start an ASGI request, or let a direct one have its turn."""
        self._has_progressed = True
        self._awaits_head = False
        if self._head_timer.handle is not None:
            self._head_timer.stop()
        self._idle_timer.idle_since = None  # the answer to the request before may have been sent while this head came
        if self.transport.is_closing():
            return
        self._parsed = request = self._direct_request()
        if request is None:
            super().on_headers_complete()
            if self._is_retiring:
                say_close(self.cycle)
            self.scope["extensions"] = self._listeners.extensions(self.transport.abort)
            if self._application is not None:
                self.scope["state"]["client"] = self._client
            return
        is_its_turn = self.cycle is None or self.cycle.response_complete
        self.cycle = request  # type: ignore[assignment]
        if is_its_turn and not self.flow.write_paused:
            self._next = request
        else:
            self._is_held = self._is_held or is_its_turn
            self.flow.pause_reading()
            self.pipeline.appendleft((request, self.app))  # type: ignore[arg-type]

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._has_progressed = True
        if self._num_linger_bytes is not None:
            self._num_linger_bytes -= len(body)
            if self._num_linger_bytes < 0:
                self.transport.close()
        elif self._parsed is None:
            super().on_body(body)
        else:
            self._parsed.feed(body)
        if self.pipeline:
            self.flow.pause_reading()  # an ASGI request that asks for its body resumes it

    def on_message_complete(self) -> None:
        """Answer a direct request; expect a head next."""
        self._has_progressed = True
        self._is_between_messages = True
        if self._num_linger_bytes is not None:
            self.transport.close()
        elif self._parsed is None:
            super().on_message_complete()
        else:
            request, self._parsed = self._parsed, None
            request.finish()
            if request is self._next:
                self._begin()

    def send_continue(self) -> None:
        """Ask the client for the body that it holds back."""
        self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def send_answer(
        self, request: DirectRequest, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> None:
        """Send the answer to the direct request in progress."""
        lines = b"\r\n".join(map(b": ".join, (*self.server_state.default_headers, *headers)))
        end = b"\r\n\r\n" if request.keep_alive else b"\r\nconnection: close\r\n\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], LINES, lines, end, body)))
        self._listeners.when_gone = None
        if not request.is_body_complete:
            self._num_linger_bytes = LINGER_BYTES
            self._lingering = self.loop.call_later(LINGER_SECONDS, self.transport.close)
        elif not request.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._say(b"400 Bad Request", msg.encode())

    def on_response_complete(self) -> None:
        """Turn to the pipeline's next request, or begin to wait for one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._take_next()
            return
        self.flow.resume_reading()
        self._idle_timer.idle_since = self.loop.time()
        if self._idle_timer.handle is None:
            self._idle_timer.start()

    def resume_writing(self) -> None:
        """Go on with the pipeline: the client has read its answers."""
        super().resume_writing()
        if self._is_held:
            self._take_next()

    def _unset_keepalive_if_required(self) -> None:
        """Leave the timer: see IdleTimer."""

    def _direct_request(self) -> DirectRequest | None:
        if self._application is None:
            return None
        method, url = self.parser.get_method(), httptools.parse_url(self.url)
        path = urllib.parse.unquote(url.path.decode("ascii"))
        if (method, path) not in self._application.direct_routes:
            return None
        return DirectRequest(
            method.decode("ascii"),
            path,
            url.query or b"",
            self.headers,
            self._client,
            keep_alive=not self._is_retiring
            and self.parser.get_http_version() != "1.0"
            and self.parser.should_keep_alive(),
            awaits_continue=self.expect_100_continue,
        )

    def _take_next(self) -> None:
        """Let the pipeline's next request begin, unless the client does not read its answers."""
        self._is_held = self.flow.write_paused
        if self._is_held:
            return
        cycle, app = self.pipeline.pop()
        if not self.pipeline:
            self.flow.resume_reading()
        if isinstance(cycle, DirectRequest):
            self._next = cycle
            self.loop.call_soon(self._begin)  # one after the other: each may be refused at once, thousands of them
        else:
            self._start_asgi_task(cycle, app)

    def _begin(self) -> None:
        """Let the request begin whose turn it is, if any."""
        request, self._next = self._next, None
        if request is not None and self._application is not None and not self.transport.is_closing():
            self._listeners.when_gone = request.leave
            request.begin(self._application, self)

    def _refuse_slow_head(self) -> None:
        self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        """Say why and close; say nothing where no request has begun or where an earlier answer is still due."""
        is_head, self._awaits_head = self._awaits_head, False
        self._head_timer.stop()
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if is_head:
                self.cycle.keep_alive = False  # its answer is the last on this connection
                self.flow.pause_reading()
            else:
                self.transport.close()
            return
        if not self._is_between_messages and self._num_linger_bytes is None:
            self._say(status)
        self.transport.close()

    def _say(self, status: bytes, text: bytes = b"") -> None:
        """Send an answer that is not an application's, and close."""
        head = b"HTTP/1.1 %b\r\n%bcontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, LINES, len(text)) + text)
        self.transport.close()


def without_upgrade(data: bytes) -> bytes:
    """Return the bytes with the first head's Upgrade header under another name.

    The gateway speaks only HTTP/1.1, and a server may ignore the header (RFC 9110, section 7.8); but the parser would
    not read the body that follows it as a body. Some clients send it with every first request.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0 or b"upgrade:" not in data[:end].lower():
        return data
    return UPGRADE.sub(b"\r\nX-Upgrade:", data[:end]) + data[end:]
