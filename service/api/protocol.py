"""HTTP/1.1 on a socket: uvicorn's protocol on httptools, with bounds on the head of a request that it lacks.

uvicorn bounds neither how long a head may be nor how long it may take, and httptools gathers it in memory.
It also tells of a client that left only to those who keep a task waiting for that; here a function is called.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

KIBIBYTE = 1024
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
SHORTCUTS = "torchgate.shortcuts"  # among the extensions of a request's scope


class Shortcuts:
    """What the application may do with a request beyond ASGI, under SHORTCUTS in its scope's extensions."""

    __slots__ = ("_cycle", "_protocol")

    def __init__(self, protocol: "BoundedHttpProtocol", cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle

    def when_gone(self, call: Callable[[], None] | None) -> None:
        """Have `call` called if the client leaves during the request that is being answered; None ends that."""
        self._protocol.when_gone = call

    def take_body(self) -> bytes | None:
        """Return the body if it came together with the head, else None."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    async def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole answer; its headers, with a Content-Length among them, are known to be well-formed.

        What two ASGI messages do, without their checks and with one system call instead of two.
        """
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        pieces = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            pieces += (name, b": ", value, b"\r\n")
        pieces += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body)
        cycle.transport.write(b"".join(pieces))
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


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
        self.when_gone: Callable[[], None] | None = None  # called if the client leaves before its answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._awaits_head = True
        self._set_alarm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting, and tell who wanted to know."""
        self._stop_waiting()
        if self.when_gone is not None:
            self.when_gone()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; what is neither body nor the end of a head may not become too much."""
        if self._is_between_messages:
            data = _without_upgrade(data)
        self._got_somewhere = False
        super().data_received(data)
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

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those that follow a chunked body are dropped, nobody here asks for them."""
        if self._awaits_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop waiting: the head is there."""
        self._got_somewhere = True
        self._stop_waiting()
        super().on_headers_complete()
        extensions: Any = {SHORTCUTS: Shortcuts(self, self.cycle)}
        self.scope["extensions"] = extensions

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._got_somewhere = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect a head next."""
        self._got_somewhere = True
        self._is_between_messages = True
        super().on_message_complete()

    def _set_alarm(self) -> None:
        self._alarm = self.loop.call_later(self.max_head_seconds, self._refuse, b"408 Request Timeout")

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


def _without_upgrade(data: bytes) -> bytes:
    """Return the bytes with the first head's Upgrade header under another name.

    Nothing else than HTTP/1.1 is spoken here, and a server may ignore the header (RFC 9110, section 7.8); but the
    parser would take the body that follows it for something else. Some clients send it with every first request.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0 or b"upgrade:" not in data[:end].lower():
        return data
    return UPGRADE.sub(b"\r\nX-Upgrade:", data[:end]) + data[end:]
