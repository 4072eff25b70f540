"""Heads of requests: how large one may be, and how its fields are read."""

from collections.abc import Iterable

import httptools

Headers = Iterable[tuple[bytes, bytes]]

MAX_URL_BYTES = 8 * 1024
MAX_HEADERS = 128

BAD_REQUEST = b"400 Bad Request"
REQUEST_TIMEOUT = b"408 Request Timeout"
URI_TOO_LONG = b"414 URI Too Long"
HEADERS_TOO_LARGE = b"431 Request Header Fields Too Large"
NOT_IMPLEMENTED = b"501 Not Implemented"
VERSION_NOT_SUPPORTED = b"505 HTTP Version Not Supported"


class MessageRefused(Exception):
    """Stops the parser from within one of its callbacks; `status` is what the client is told."""

    def __init__(self, status: bytes) -> None:
        super().__init__(status)
        self.status = status


def status_of(error: httptools.HttpParserError) -> bytes:
    """Return the status that tells a client why the parser stopped."""
    cause = error.__context__
    return cause.status if isinstance(cause, MessageRefused) else BAD_REQUEST


def without_upgrade(parser: httptools.HttpRequestParser, url: bytes, headers: Headers) -> bytes:
    """Return the head that `parser` has just read, without its wish to upgrade.

    The gateway speaks only HTTP/1.1, and a server may ignore the wish (RFC 9110, section 7.8). Some clients state it in
    every first request, with a body. The parser stops at such a head and would take the body for the next request.
    """
    kept = [b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"]
    first = b"%b %b HTTP/%b\r\n" % (parser.get_method(), url, parser.get_http_version().encode())
    return b"".join((first, *kept, b"\r\n"))


def create_parser(connection: object) -> httptools.HttpRequestParser:
    """Return a parser like uvicorn's, which goes on after a request that closes the connection."""
    parser = httptools.HttpRequestParser(connection)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def content_length(headers: Headers) -> int:
    """Return the declared length of the body, 0 if there is none."""
    return next((int(value) for name, value in headers if name == b"content-length"), 0)
