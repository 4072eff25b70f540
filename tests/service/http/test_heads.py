"""Heads that came before are understood as the parser would understand them, or not at all."""

import asyncio
from pathlib import Path

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.http.heads import MOST_HEADS, Head, Headers, KnownHeads
from tests.gateway import running_gateway

REQUEST = b"POST /predict?top_k=2 HTTP/1.1\r\nHost: t\r\nContent-Length: 7\r\nAccept: */*\r\n\r\nclass:1"
PLAIN = b"POST /predict HTTP/1.1\r\nContent-Length: 7\r\n\r\n"
OTHER_LENGTH = b"POST /predict HTTP/1.1\r\nX-Content-Length: %d\r\nContent-Length: 7\r\n\r\n"


class Parsed:
    """All requests that httptools finds in some bytes, each as head and body; `wrong` where it finds something else."""

    def __init__(self, data: bytes) -> None:
        self.requests: list[tuple[Head, bytes]] = []
        self.is_whole = self.wrong = False
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.wrong = True

    def on_message_begin(self) -> None:
        self.is_whole = False
        self._url = self._body = b""
        self._headers: Headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.is_whole = True
        path, _, query = self._url.partition(b"?")
        keep_alive = self._parser.get_http_version() != "1.0" and self._parser.should_keep_alive()
        head = Head(self._parser.get_method().decode(), path.decode(), query, self._headers, keep_alive)
        self.requests.append((head, self._body))


def known_from(data: bytes) -> KnownHeads:
    """Return what is remembered after these bytes came in one piece."""
    known, parsed = KnownHeads(), Parsed(data)
    for head, body in parsed.requests:
        known.remember(data, head, len(body))
    return known


LINES = st.sampled_from(
    [
        *(b"Host: t", b"Content-Length: 7", b"Content-Length: 07", b"Content-Length: 9", b"content-length: 7"),
        *(b"Content-Length:  7", b"Content-Length: 7 ", b"Content-Length: +7", b"X-Content-Length: 9"),
        *(b"Transfer-Encoding: chunked", b"Connection: close", b"X-Request-Id: a", b"X: a\r\n Content-Length: 9"),
    ]
)
BODIES = st.sampled_from(
    [b"class:1", b"class:12", b"class:123", b"class:1" + REQUEST, b"", b"7\r\nclass:1\r\n0\r\n\r\n"]
)
LENGTHS = st.sampled_from([b"h: 7", b"h: 8", b"h: 9", b"h: 07", b"h: 0", b"h: -7", b"h: 7 "])
FIRST = st.sampled_from(
    [b"POST /predict HTTP/1.1", b"POST /predict HTTP/1.0", b"\r\nPOST /predict HTTP/1.1", b"Host: u"]
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draw a request that is nearly one, and another that differs by its body, by lengths, or by everything."""
    lines = [draw(FIRST), *draw(st.lists(LINES, max_size=4))]
    one = b"\r\n".join(lines) + b"\r\n\r\n"
    other = one.replace(draw(LENGTHS), draw(LENGTHS)) if draw(st.integers(0, 9)) else draw(LINES) + b"\r\n\r\n"
    return one + draw(BODIES), other + draw(BODIES)


@settings(max_examples=500, deadline=None)
@given(pairs())
@example((REQUEST, REQUEST.replace(b": 7", b": 8") + b"2"))
@example((PLAIN + b"class:1" + REQUEST, PLAIN + b"class:2"))
@example((OTHER_LENGTH % 7 + b"class:1", OTHER_LENGTH % 9 + b"class:123"))
def test_a_known_head_means_what_the_parser_would_say(pair: tuple[bytes, bytes]) -> None:
    first, _ = pair
    for data in pair:
        if (found := known_from(first).find(data)) is None:
            continue
        head, fields, body = found
        parsed = Parsed(data)
        assert not parsed.wrong
        assert parsed.is_whole
        ((expected, expected_body),) = parsed.requests
        assert (head.method, head.path, head.query_string) == (expected.method, expected.path, expected.query_string)
        assert head.keep_alive
        assert expected.keep_alive
        assert (fields, body) == (dict(expected.headers), expected_body)


@pytest.mark.parametrize(
    "again",
    [REQUEST, REQUEST.replace(b": 7", b": 8") + b"2", REQUEST.replace(b": 7", b": 100007") + b" " * 100_000],
)
def test_the_same_head_is_found_with_another_length(again: bytes) -> None:
    found = known_from(REQUEST).find(again)
    assert found is not None
    head, fields, body = found
    assert (head.method, head.path, head.query_string) == ("POST", "/predict", b"top_k=2")
    assert fields == {b"host": b"t", b"content-length": str(len(body)).encode(), b"accept": b"*/*"}
    assert again.endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize("again", [REQUEST + b"2", REQUEST[:-1], REQUEST[:20], b"", REQUEST.replace(b"*/*", b"a/b")])
def test_anything_else_is_not(again: bytes) -> None:
    assert known_from(REQUEST).find(again) is None


def test_there_are_never_many() -> None:
    known = KnownHeads()
    for number in range(3 * MOST_HEADS):
        data = REQUEST.replace(b"top_k=2", b"top_k=%d" % number)
        ((head, body),) = Parsed(data).requests
        known.remember(data, head, len(body))
        assert known.find(data) is not None
        assert len(known) <= MOST_HEADS


@pytest.mark.anyio
async def test_on_a_connection_each_gets_its_own_answer(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        head = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n"
        bodies = [b"class:1", b"class:2", b"class:3 ", b"class:0"]
        pieces = [head % len(body) + body for body in bodies]
        # Known now: in one piece again, cut, two at once, and behind one that is still to be answered.
        cut = pieces[1]
        for sent in (pieces[0], pieces[1], pieces[2], cut[:30], cut[30:], pieces[3] + pieces[0], pieces[2]):
            writer.write(sent)
            await writer.drain()
            await asyncio.sleep(0.02)  # so that they come one by one; together they would do as well
        labels = []
        async with asyncio.timeout(15):
            for _ in range(7):
                said = await reader.readuntil(b"\r\n\r\n")
                assert said.startswith(b"HTTP/1.1 200 ")
                length = next(line for line in said.lower().splitlines() if line.startswith(b"content-length:"))
                body = await reader.readexactly(int(length.split(b":")[1]))
                labels.append(body.split(b'"label":"')[1].split(b'"')[0])
        writer.close()
    assert labels == [b"one", b"two", b"three", b"two", b"zero", b"one", b"three"]
