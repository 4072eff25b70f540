"""HTTP/1.1 to a server next door: requests over connections that stay open, without anything that a batch can spare.

Written on httptools, the parser of the gateway's own server. A general client takes longer over one request than
TorchServe's worker over one image.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import httptools

MOST_BYTES = 256 * 1024 * 1024  # of an answer: whole probability vectors of the largest batch are less


class ConnectionEndedError(Exception):
    """The connection ended before the whole answer was there."""


class HttpClient:
    """Sends requests to one address, each on a connection of its own while it lasts."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        name = f"[{host}]" if ":" in host else host
        self._host_header = f"Host: {name}:{port}\r\n".encode()
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def post(
        self, path: str, content_type: str, pieces: Sequence[bytes], headers: Sequence[tuple[str, str]] = ()
    ) -> tuple[int, bytes]:
        """Send the pieces as one body; return status and body of the answer.

        A request on a connection that the server closed in the meantime, as it may, is sent again on a new one.

        Raises:
            OSError: nobody listens there.
            ConnectionEndedError: the answer broke off, or is not HTTP.
        """
        head = b"POST %b HTTP/1.1\r\n%b%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (
            path.encode("ascii"),
            self._host_header,
            "".join([f"{name}: {value}\r\n" for name, value in headers]).encode("ascii"),
            content_type.encode("ascii"),
            sum(map(len, pieces)),
        )
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_ended:
                with suppress(_NotBegunError):
                    return await self._ask(connection, head, pieces)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(self._open), self._host, self._port)
        return await self._ask(connection, head, pieces)

    async def close(self) -> None:
        """Close all connections."""
        self._idle.clear()
        for connection in list(self._open):
            connection.end()

    async def _ask(self, connection: "_Connection", head: bytes, pieces: Sequence[bytes]) -> tuple[int, bytes]:
        try:
            answer = await connection.ask(head, pieces)
        except BaseException:
            connection.end()  # nobody waits for the rest of this answer
            raise
        if not connection.has_ended:
            self._idle.append(connection)
        return answer


class _NotBegunError(ConnectionEndedError):
    """The server closed a connection that had been used before without a byte of an answer."""


class _Connection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self, all_open: "set[_Connection]") -> None:
        self.has_ended = False
        self._all_open = all_open
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._body: list[bytes] = []
        self._num_bytes = 0
        self._has_begun = False
        self._was_used = False

    async def ask(self, head: bytes, pieces: Sequence[bytes]) -> tuple[int, bytes]:
        """Send a request and return status and body of its answer."""
        if self.has_ended:  # before it was asked anything
            raise ConnectionEndedError("the server closed the connection at once")
        self._answer = asyncio.get_running_loop().create_future()
        self._has_begun = False
        self._body.clear()
        self._num_bytes = 0
        self._transport.writelines([head, *pieces])
        answer = await self._answer
        self._was_used = True
        return answer

    def end(self) -> None:
        """Close it at once."""
        self.has_ended = True
        self._transport.abort()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by name
        self._all_open.add(self)

    def data_received(self, data: bytes) -> None:
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionEndedError(f"the answer is not HTTP: {error}"))
            self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True
        self._all_open.discard(self)
        kind = ConnectionEndedError if self._has_begun or not self._was_used else _NotBegunError
        self._fail(kind(f"the connection ended before the answer did ({exc or 'closed by the server'})"))

    # What the parser calls

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            self.end()  # nobody has asked: it would be taken for the answer to the next request

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._num_bytes += len(body)
        if self._num_bytes > MOST_BYTES:
            self._fail(ConnectionEndedError(f"the answer has more than {MOST_BYTES} bytes"))
            self._body.clear()
            self.end()

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.end()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._body)))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
