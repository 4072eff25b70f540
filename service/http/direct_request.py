"""A request that is answered around ASGI, and the seams between connection, request and application."""

import urllib.parse
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Protocol, runtime_checkable

import httptools

from service.http.server import heads
from service.http.server.clients import Client, Wire
from service.http.server.connections import Connections

RawHeaders = list[tuple[bytes, bytes]]

MAX_CACHED_TARGETS = 64  # clients repeat theirs; each has at most 8 KiB


class DirectHandler(Protocol):
    """Answers one direct request. The connection tells it what happens; none of its methods may raise."""

    def begin(self) -> None:
        """Check the head, which is complete; the request may be refused at once."""

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body."""

    def finish(self) -> None:
        """Answer the request: its body is complete."""

    def leave(self) -> None:
        """Give up: the client has left."""


@runtime_checkable
class DirectApplication(Protocol):
    """An application that answers some routes around ASGI."""

    direct_routes: Collection[tuple[bytes, str]]  # method and path
    connections: Connections

    def greet(self, transport: Wire, listener: str) -> Client:
        """Return who is at the other end of a new connection, which came in by the socket of this name."""

    def handle(self, request: "DirectRequest") -> DirectHandler:
        """Return what answers `request`; it has not begun."""


class Connection(Protocol):
    """What a request needs of its connection."""

    def send_continue(self) -> None:
        """Ask the client for the body that it holds back."""

    def send_answer(
        self, request: "DirectRequest", status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> None:
        """Send the answer to the connection's current request."""


class _NobodyWaits:
    def set(self) -> None:
        """Wake nobody."""


class DirectRequest:
    """One request around ASGI: it keeps the body's first pieces until it begins, and passes on all that follow.

    uvicorn keeps it where it keeps its own request cycles, so it has those attributes of theirs that uvicorn reads and
    writes: keep_alive, disconnected, response_complete, message_event.
    """

    __slots__ = (
        *("_awaits_continue", "_connection", "_handler", "_pieces", "client", "disconnected", "headers"),
        *("is_body_complete", "keep_alive", "method", "path", "query_string", "response_complete"),
    )
    message_event = _NobodyWaits()

    def __init__(
        self,
        method: str,
        path: str,
        query_string: bytes,
        headers: RawHeaders,
        client: Client,
        *,
        keep_alive: bool,
        awaits_continue: bool,
    ) -> None:
        self.method = method
        self.path = path
        self.query_string = query_string
        self.headers = headers
        self.client = client  # at the other end of the connection: the proxy if there is one
        self.keep_alive = keep_alive
        self.is_body_complete = False
        self.response_complete = False
        self.disconnected = False
        self._awaits_continue = awaits_continue
        self._pieces: list[bytes] = []
        self._handler: DirectHandler | None = None
        self._connection: Connection | None = None

    def begin(self, application: DirectApplication, connection: Connection) -> None:
        """Have `application` answer the request, and give it what has come of the body."""
        self._connection = connection
        self._handler = application.handle(self)
        self._handler.begin()
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            self.feed(piece)
        if self.is_body_complete:
            self.finish()
        elif self._awaits_continue and not pieces and not self.response_complete:
            connection.send_continue()

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the body; what follows an early answer is thrown away."""
        if self._handler is not None:
            self._handler.feed(piece)
        elif not self.response_complete:
            self._pieces.append(piece)

    def finish(self) -> None:
        """Note that the body is complete."""
        self.is_body_complete = True
        if self._handler is not None:
            self._handler.finish()

    def leave(self) -> None:
        """Note that the client has left."""
        if self._handler is not None:
            self._handler.leave()

    def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send the answer; its headers must be well-formed and have a Content-Length.

        An answer that comes before the end of the body closes the connection.
        """
        connection = self._end()
        assert connection is not None, "answered twice"
        self.keep_alive = self.keep_alive and self.is_body_complete
        connection.send_answer(self, status, headers, body)

    def drop(self) -> None:
        """End without an answer, since the client has left."""
        self._end()

    def _end(self) -> Connection | None:
        connection, self._connection, self._handler = self._connection, None, None  # both lead back here
        self.response_complete = True
        return connection


def direct_request(
    application: DirectApplication | None,
    parser: httptools.HttpRequestParser,
    target: bytes,
    headers: RawHeaders,
    client: Client,
    awaits_continue: bool,
) -> tuple[bytes, DirectRequest | None]:
    """Return the target of the head that was read, beginning with a path, and its request if it goes around ASGI.

    A head that another server or a proxy may read in another way is refused (RFC 9112, sections 2.3, 3.2 and 6.1).

    Raises:
        MessageRefused: the version is not 1.0 or 1.1, there is not one `Host` (1.0 may have none), the target is no
            URL, or the body is encoded in another way than in chunks.
    """
    version, names = parser.get_http_version(), [name for name, _ in headers]
    if version not in {"1.1", "1.0"}:
        raise heads.MessageRefused(heads.VERSION_NOT_SUPPORTED)
    if (num_hosts := names.count(b"host")) != 1 and (num_hosts or version == "1.1"):
        raise heads.MessageRefused(heads.BAD_REQUEST)
    if b"transfer-encoding" in names and [v.lower() for n, v in headers if n == b"transfer-encoding"] != [b"chunked"]:
        raise heads.MessageRefused(heads.NOT_IMPLEMENTED)
    try:
        target, path, query_string = _parts(target)
    except httptools.HttpParserInvalidURLError as error:
        raise heads.MessageRefused(heads.BAD_REQUEST) from error
    method = parser.get_method()
    if application is None or (method, path) not in application.direct_routes:
        return target, None
    return target, DirectRequest(
        method.decode("ascii"),
        path,
        query_string,
        headers,
        client,
        keep_alive=version != "1.0" and parser.should_keep_alive(),
        awaits_continue=awaits_continue,
    )


@lru_cache(MAX_CACHED_TARGETS)
def _parts(target: bytes) -> tuple[bytes, str, bytes]:
    """Return the target, beginning with a path, its decoded path, and its query string."""
    url = httptools.parse_url(target)
    if url.path is None:  # as in `GET http://host HTTP/1.1`
        target = b"/" if url.query is None else b"/?" + url.query
    return target, urllib.parse.unquote((url.path or b"/").decode("ascii")), url.query or b""
