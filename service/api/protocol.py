"""HTTP/1.1 on a socket: uvicorn's protocol on httptools, with bounds on the head of a request that it lacks.

uvicorn bounds neither how long a head may be nor how long it may take, and httptools gathers it in memory.
"""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

KIBIBYTE = 1024


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses a request whose head is too long, and hangs up on one that does not come."""

    max_head_bytes: ClassVar[int] = 64 * KIBIBYTE
    max_head_seconds: ClassVar[float] = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_head_bytes = 0
        self._awaits_head = False
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of the head of a request that has begun."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """Stop waiting: the head is there."""
        self._stop_waiting()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Parse what came, and count it while it is a head."""
        super().data_received(data)
        if self._awaits_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > self.max_head_bytes:
                self._refuse(b"431 Request Header Fields Too Large")

    def _await_head(self) -> None:
        self._stop_waiting()
        self._awaits_head = True
        self._num_head_bytes = 0
        self._patience = self.loop.call_later(self.max_head_seconds, self._refuse, b"408 Request Timeout")

    def _stop_waiting(self) -> None:
        self._awaits_head = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _refuse(self, status: bytes) -> None:
        """Say why and hang up; nothing at all where a connection was opened and not used."""
        self._stop_waiting()
        if self.transport.is_closing():
            return
        if self._num_head_bytes:
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self.transport.close()
