"""HTTP/1.1 on a socket: uvicorn's protocol on httptools, with bounds that uvicorn lacks, and a way around ASGI.

uvicorn bounds neither heads nor the requests that wait on a connection, and httptools gathers heads in memory.
Requests of an application's `direct_routes` go around ASGI, without a task and a queue of messages for each:

    head complete ─> DirectRequest ─┬─ its turn: begins when what was read is parsed, or its body has ended
                                    └─ behind an unanswered request: waits in uvicorn's pipeline, and what was read
                                       after it waits in the intake, unparsed
    early refusal ─> `connection: close`, then the rest of the body is read and thrown away for a while
    broken or too large ─> the requests before it are answered, then it is refused, then the connection closes
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.http.direct_request import DirectRequest, direct_request
from service.http.security_headers import LINES
from service.http.server import heads
from service.http.server.connection import LINGER_BYTES, LINGER_SECONDS, Connection, say_close
from service.http.server.intake import PIECE_BYTES, Intake
from service.http.server.timers import HeadTimer


class BoundedHttpProtocol(Connection):
    """One connection. Bounds heads and waiting requests, and ignores requests to upgrade."""

    max_head_bytes: ClassVar[int] = 64 * 1024
    max_head_seconds: ClassVar[float] = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Bytes since the parser's last progress: the end of a head, of a piece of a body, or of a message.
        self._num_idle_bytes = 0
        self._has_progressed = False
        self._awaits_head = False
        self._is_between_messages = True
        self._num_body_bytes = 0  # of the request that is being parsed
        self._intake = Intake(self.loop)
        self._farewell: bytes | None = None  # the status that refuses what came last, once nothing else is due
        self._parsed: DirectRequest | None = None  # the request that is being parsed, if it is a direct one
        self._next: DirectRequest | None = None  # the request whose turn it is, until it begins
        self._is_held = False  # the pipeline waits until the client reads its answers
        self._num_linger_bytes: int | None = None  # left to read and throw away after an early refusal
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._head_timer = HeadTimer(self.loop, self.max_head_seconds, partial(self._refuse, heads.REQUEST_TIMEOUT))
        self._awaits_head = True
        self._head_timer.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._head_timer.close()
        self._intake.clear()
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)

    @property
    def idle_since(self) -> float | None:
        """Since when it has no whole head of a request, by the event loop's clock; None during one."""
        is_due = self.cycle is not None and not self.cycle.response_complete
        return super().idle_since or (self._head_timer.since if self._awaits_head and not is_due else None)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless it is much or has to wait."""
        if len(data) <= PIECE_BYTES and not self.pipeline and not self.flow.is_held:
            self.parse(data)
            self.begin()
        else:
            self._intake.add(data)
            self._intake.pass_on(self)

    @property
    def takes_more(self) -> bool:
        """Whether to go on parsing; see `Reader` for this and the next three."""
        return not self.pipeline and self._farewell is None and not self.transport.is_closing()

    @property
    def num_body_bytes_left(self) -> int | None:
        """How much of the body is still to come, if known."""
        if self._awaits_head or self._is_between_messages:
            return None
        return heads.content_length(self.headers) - self._num_body_bytes

    def parse(self, piece: bytes | memoryview) -> None:
        """Parse a piece; bytes that are neither body nor the end of a head are bounded."""
        self._has_progressed = False
        while True:
            try:
                self.parser.feed_data(piece)
                break
            except httptools.HttpParserUpgrade as upgrade:
                piece = heads.without_upgrade(self.parser, self.url, self.headers) + piece[upgrade.args[0] :]
                self.parser = heads.create_parser(self)
            except httptools.HttpParserError as error:
                self._refuse(heads.status_of(error))
                return
        if self._has_progressed:
            self._num_idle_bytes = 0
            if not self._awaits_head:
                return
        else:
            self._num_idle_bytes += len(piece)
        if self._awaits_head and self._head_timer.handle is None:
            self._head_timer.start()  # only now, since most heads come in one piece and are complete by here
        if self._num_idle_bytes > self.max_head_bytes:
            self._refuse(heads.HEADERS_TOO_LARGE)

    def begin(self) -> None:
        """Let the request begin whose turn it is, if any."""
        request, self._next = self._next, None
        if request is not None and self._application is not None and not self.transport.is_closing():
            self._listeners.when_gone = request.leave
            request.begin(self._application, self)

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a head."""
        super().on_message_begin()
        self._awaits_head = True
        self._is_between_messages = False
        self._num_body_bytes = 0
        self._idle_timer.idle_since = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, as uvicorn does; trailers after a chunked body are dropped."""
        if not self._awaits_head:
            return
        headers = self.headers
        if len(headers) == heads.MAX_HEADERS:
            raise heads.MessageRefused(heads.HEADERS_TOO_LARGE)
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start an ASGI request, or let a direct one have its turn."""
        if len(self.url) > heads.MAX_URL_BYTES:
            raise heads.MessageRefused(heads.URI_TOO_LONG)
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise heads.MessageRefused(heads.NOT_IMPLEMENTED)
            return  # `parse` has the head parsed again, without the wish to upgrade
        self.url, request = direct_request(
            self._application, self.parser, self.url, self.headers, self._client, self.expect_100_continue
        )
        self._has_progressed = True
        self._awaits_head = False
        if self._head_timer.handle is not None:
            self._head_timer.stop()
        self._idle_timer.idle_since = None  # the answer to the request before may have been sent while this head came
        if self.transport.is_closing():
            raise heads.MessageRefused(heads.BAD_REQUEST)  # which nobody hears
        self._parsed = request
        if request is None:
            super().on_headers_complete()
            if self._is_retiring:
                say_close(self.cycle)
            self.scope["extensions"] = self._listeners.extensions(self.transport.abort)
            if self._application is not None:
                self.scope["state"]["client"] = self._client
            return
        request.keep_alive = request.keep_alive and not self._is_retiring
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
        self._num_body_bytes += len(body)
        if self._num_linger_bytes is not None:
            self._num_linger_bytes -= len(body)
            if self._num_linger_bytes < 0:
                self.transport.close()
        elif self._parsed is None:
            super().on_body(body)
        else:
            self._parsed.feed(body)

    def on_message_complete(self) -> None:
        """Answer a direct request; expect a head next."""
        if self._awaits_head:
            return  # the head wishes to upgrade and will be parsed again
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
                self.begin()

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

    def on_response_complete(self) -> None:
        """Turn to the pipeline's next request, or begin to wait for one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._take_next()
            return
        if self._farewell is not None:
            self._say_farewell()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        self._idle_timer.idle_since = self.loop.time()
        if self._idle_timer.handle is None:
            self._idle_timer.start()

    def resume_writing(self) -> None:
        """Go on with the pipeline: the client has read its answers."""
        super().resume_writing()
        if self._is_held:
            self._take_next()

    def _take_next(self) -> None:
        """Let the pipeline's next request begin, unless the client does not read its answers."""
        self._is_held = self.flow.write_paused
        if self._is_held or not self.pipeline:
            return
        cycle, app = self.pipeline.pop()
        if not self.pipeline:
            self.flow.resume_reading()
        if isinstance(cycle, DirectRequest):
            self._next = cycle
            self.loop.call_soon(self.begin)  # one after the other: each may be refused at once, thousands of them
        else:
            self._start_asgi_task(cycle, app)
        if self.flow.is_held:
            self._intake.pass_on_soon(self)

    def _refuse(self, status: bytes) -> None:
        """Read no more; answer the requests that came whole, then tell the client why, and close."""
        is_head, self._awaits_head = self._awaits_head, False
        self._head_timer.stop()
        self._intake.clear()
        if self.transport.is_closing():
            return
        self.flow.hold()
        self._farewell = status
        is_due = self.cycle is not None and not self.cycle.response_complete
        if not is_head and not self._is_between_messages:  # a body is broken, so that its request gets no other answer
            self._parsed = None
            if self.pipeline and self.pipeline[0][0] is self.cycle:
                self.pipeline.popleft()
                is_due = bool(self.pipeline) or not self._is_held
            else:
                self._next = None
                if not is_due or getattr(self.cycle, "response_started", False):
                    self.transport.close()
                    return
                self.cycle.disconnected = True  # what an ASGI route says yet is dropped: nothing follows the refusal
                self.cycle.message_event.set()
                is_due = False
        if not is_due:
            self._say_farewell()

    def _say_farewell(self) -> None:
        """Say why and close; say nothing where no request has begun."""
        if self._farewell is not None and not self._is_between_messages:
            self.say(self._farewell)
            self.hang_up()
        else:
            self.transport.close()
