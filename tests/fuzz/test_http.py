"""Heads and bodies of HTTP/1.1: any bytes, cut anywhere, in any order.

Always: every answer is well-formed, none is a server's error, no exception is logged, no connection stands still, and
what is answered does not depend on how the bytes were cut.
"""

from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from tests.fuzz.front import Answer, Front, Said, cut, opened_front
from tests.fuzz.profile import fuzzed

MAX_BODY_BYTES = 100_000
LABELS = ["zero", "one", "two", "three"]
# What a client may be told; 408 takes longer than a test.
STATUSES = {200, 400, 401, 403, 404, 405, 413, 414, 415, 422, 429, 431, 501}
PLACES = st.lists(st.integers(0, 20_000), max_size=12)
FRAGMENTS = [
    *(b"GET ", b"POST ", b"PUT ", b"CONNECT ", b"PRI ", b"QUERY ", b"OPTIONS * "),
    *(b"/healthz", b"/predict", b"/predict?top_k=2", b"/models/%ff", b"//", b"/\xe4", b"http://t/healthz", b"http://t"),
    *(b"?", b"#", b"%", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/1.1\n", b" HTTP/2.0\r\n", b" HTTP/9\r\n"),
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"\r\n\r\n", b"\n\n"),
    *(b"Host: t\r\n", b"Host: \r\n", b"Host: [\r\n", b"Host: t\r\nHost: u\r\n"),
    *(b"Content-Length: 7\r\n", b"Content-Length: 0\r\n", b"Content-Length: -1\r\n", b"Content-Length: 7, 7\r\n"),
    *(b"Content-Length: 99999999999999999999\r\n", b"Content-Length: 18446744073709551615\r\n", b"Content-Length:\r\n"),
    *(b"Content-Length: 200000\r\n", b"Content-Length: 0x7\r\n", b"Content-Length: +7\r\n", b"content-length : 7\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: identity\r\n"),
    *(b"Transfer-Encoding: chunked, gzip\r\n", b"Transfer-Encoding:\r\n chunked\r\n", b"Transfer-Encoding: x\r\n"),
    *(b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n"),
    *(b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n", b"Expect: 100-continue\r\n"),
    *(b"Content-Type: image/png\r\n", b"Content-Type: application/json\r\n", b"Content-Encoding: gzip\r\n"),
    *(b"Content-Type: multipart/form-data; boundary=b\r\n", b"X-Deadline-Ms: -1\r\n", b"X-Folded: a\r\n b\r\n"),
    *(b"X: \xff\r\n", b"X Y: z\r\n", b": z\r\n", b"X: a\0b\r\n", b"X-Request-Id: " + b"i" * 200 + b"\r\n"),
    *(b"class:1", b"7\r\nclass:1\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"7;x=y\r\nclass:1\r\n", b'7;x="\n"\r\n'),
    *(b"ffffffffffffffff\r\n", b"10000000000000000\r\n", b"-1\r\n", b"0x7\r\nclass:1\r\n", b"7\nclass:1\n", b"7 \r\n"),
    *(
        b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 7\r\n\r\nclass:1",
    ),
    *(b"a" * 5000, b"/" + b"a" * 9000, b"X: y\r\n" * 130),
]
ANY_BYTES = st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=20), max_size=25).map(b"".join)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with opened_front(tmp_path_factory.mktemp("front"), max_body_bytes=MAX_BODY_BYTES) as opened:
        yield opened


def require_allowed(said: Said) -> None:
    assert {answer.status for answer in said.answers} <= STATUSES
    assert said.has_ended or not any(answer.says_close for answer in said.answers)


# The route's answer, written after the refusal of the body, was logged as an unexpected error.
@fuzzed(250)
@example(data=b"POST /nothing HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", places=[], waits=False)
@given(data=ANY_BYTES, places=PLACES, waits=st.booleans())
def test_any_bytes(front: Front, data: bytes, places: list[int], waits: bool) -> None:
    whole = front.ask([data])
    require_allowed(whole)
    cut_up = front.ask(cut(data, places), waits=waits)
    require_allowed(cut_up)
    require_same(whole, cut_up)


def require_same(whole: Said, cut_up: Said) -> None:
    """Fail unless both are the same, or one of them ended early and said so.

    A request that is refused before its body has come whole ends its connection.
    """
    num_both = min(len(whole.answers), len(cut_up.answers))
    assert whole.answers[:num_both] == cut_up.answers[:num_both]
    for said, other in ((whole, cut_up), (cut_up, whole)):
        if len(said.answers) < len(other.answers):
            assert said.has_ended
            assert said.answers[-1].says_close


# Requests as clients that keep to the rules send them.

TOKEN_BYTES = st.text("abcXYZ012-_", min_size=1, max_size=10).map(str.encode)
EXTENSIONS = st.lists(st.tuples(TOKEN_BYTES, TOKEN_BYTES), max_size=2).map(
    lambda pairs: b"".join(b";%b=%b" % pair for pair in pairs)
)
EXTRA_HEADERS = st.lists(
    st.sampled_from(
        [
            *(b"Connection: keep-alive\r\n", b"Accept: */*\r\n", b"X-Empty:\r\n", b"X-Many: a\r\nX-Many: b\r\n"),
            *(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",),
            *(b"X-Routing-Key: \xc3\xa4\r\n", b"traceparent: 00-zz\r\n", b"X-Deadline-Ms:  9000 \r\n"),
        ]
    ),
    max_size=3,
    unique=True,
).map(b"".join)


@st.composite
def valid_requests(draw: st.DrawFn) -> tuple[bytes, str]:
    """Return a request and what its answer holds."""
    headers = b"Host: t\r\n" + draw(EXTRA_HEADERS)
    if draw(st.booleans()):
        target = draw(st.sampled_from([b"/healthz", b"http://t/healthz", b"/%68ealthz", b"/healthz?a=b"]))
        return b"GET %b HTTP/1.1\r\n%b\r\n" % (target, headers), "ok"
    label = draw(st.integers(0, 3))
    # Blanks fill the image beyond what one read, or one turn of parsing, takes.
    body = b"class:%d" % label + b" " * draw(st.sampled_from([0, 1, 100, 5000, 70_000]))
    head = b"POST /predict HTTP/1.1\r\n%bContent-Type: image/png\r\n" % headers
    if draw(st.booleans()):
        expect = b"Expect: 100-continue\r\n" if draw(st.booleans()) else b""
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, expect, len(body), body), LABELS[label]
    chunks = cut(body, draw(st.lists(st.integers(0, 70_000), max_size=6)))
    sent = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), draw(EXTENSIONS), chunk) for chunk in chunks if chunk)
    trailer = draw(st.sampled_from([b"", b"X-Sum: 1\r\n", b"Host: evil\r\n"]))
    return b"%bTransfer-Encoding: chunked\r\n\r\n%b0\r\n%b\r\n" % (head, sent, trailer), LABELS[label]


@fuzzed(120)
@given(requests=st.lists(valid_requests(), min_size=1, max_size=8), places=PLACES, waits=st.booleans())
def test_each_valid_request_gets_its_own_answer(
    front: Front, requests: list[tuple[bytes, str]], places: list[int], waits: bool
) -> None:
    said = front.ask(cut(b"".join(request for request, _ in requests), places), waits=waits)
    assert not said.has_ended
    assert [_gist(answer) for answer in said.answers] == [expected for _, expected in requests]


def _gist(answer: Answer) -> str:
    assert answer.status == 200, answer
    if "predictions" in answer.body:
        (prediction,) = answer.body["predictions"]
        return str(prediction["label"])
    return str(answer.body["status"])


# Request smuggling: whatever the head says of its body, a request inside the body is never answered, and what may be
# read in two ways is refused.

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: t\r\n\r\n"
AFTER = b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n"
LENGTHS = [
    *(b"Content-Length: %d", b"content-length:%d", b"Content-Length:\t%d ", b"Content-Length: 0%d"),
    *(b"Content-Length: +%d", b"Content-Length: -%d", b"Content-Length: %d, %d", b"Content-Length : %d"),
    *(b"Content-Length: %d\x0b", b"Content-Length: %d_", b"Content-Length: 0x%d", b" Content-Length: %d"),
    *(b"Content-Length: %d\x00", b"Content-Length: %d;", b'Content-Length: "%d"', b"Content_Length: %d"),
    *(b"Content-Length:\r\n %d", b"Content-Length: 1\r\n %d", b"\x00Content-Length: %d", b"X: y\rContent-Length: %d"),
    *(b"X: y\nContent-Length: %d", b"Content-Length: %d\nX: y", b"Content-Length: 184467440737095516%d"),
]
CODINGS = [
    *(b"Transfer-Encoding: chunked", b"transfer-encoding:chunked", b"Transfer-Encoding: CHUNKED"),
    *(b"Transfer-Encoding:\tchunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: gzip"),
    *(b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: identity, chunked", b"Transfer-Encoding: xchunked"),
    *(b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding : chunked"),
    *(
        b"Transfer-Encoding: chunked\x0b",
        b"Transfer-Encoding: chunked\t",
        b"Transfer-Encoding:\x0bchunked",
        b"Transfer-Encoding: 'chunked'",
    ),
    *(b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: x\r\n chunked", b" Transfer-Encoding: chunked"),
    *(b"Transfer-Encoding: chunked;q=1", b"Transfer-Encoding: chunked,", b"Transfer-Encoding: ,chunked"),
    *(b"Transfer_Encoding: chunked", b"X: y\rTransfer-Encoding: chunked", b"X: y\nTransfer-Encoding: chunked"),
    *(b"Transfer-Encoding:", b"Transfer-Encoding: \x00chunked", b"Transfer\x00-Encoding: chunked"),
]
PLAIN_LENGTHS, PLAIN_CODINGS = {*LENGTHS[:4]}, {*CODINGS[:4]}
OTHER_NAMES = {b"Content_Length: %d", b"Transfer_Encoding: chunked"}  # names like any other, for us: no body
CHUNKS = [
    *(b"%x\r\n%b\r\n0\r\n\r\n", b"%X;ext=1\r\n%b\r\n0\r\n\r\n", b"00%x\r\n%b\r\n0\r\n\r\n"),
    *(b"%x\r\n%b\r\n0;x\r\nX: y\r\n\r\n", b"%x\n%b\r\n0\r\n\r\n", b"%x\r\n%b\n0\r\n\r\n"),
    *(b"%x\r\n%b0\r\n\r\n", b"%x\r\n%bxx0\r\n\r\n", b"0x%x\r\n%b\r\n0\r\n\r\n"),
    *(b"+%x\r\n%b\r\n0\r\n\r\n", b"-%x\r\n%b\r\n0\r\n\r\n", b" %x\r\n%b\r\n0\r\n\r\n"),
    *(b"\r\n%x\r\n%b\r\n0\r\n\r\n", b"%x\r\r\n%b\r\n0\r\n\r\n", b"%x;\n\r\n%b\r\n0\r\n\r\n"),
    *(b"ffffffffffffffff%x\r\n%b\r\n0\r\n\r\n", b"%x\x00\r\n%b\r\n0\r\n\r\n"),
]
PLAIN_CHUNKS = {*CHUNKS[:4]}


@fuzzed(250)
@example(
    lengths=[b"Content-Length: %d"],
    codings=[b"Transfer_Encoding: chunked"],
    chunks=CHUNKS[0],
    path=b"/predict",
    version=b"1.1",
    places=[],
    waits=False,
)
@example(
    lengths=[b"Content_Length: %d"],
    codings=[b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"],
    chunks=CHUNKS[0],
    path=b"/predict",
    version=b"1.1",
    places=[],
    waits=False,
)
@given(
    lengths=st.lists(st.sampled_from(LENGTHS), max_size=2),
    codings=st.lists(st.sampled_from(CODINGS), max_size=2),
    chunks=st.sampled_from(CHUNKS),
    path=st.sampled_from([b"/predict", b"/nothing"]),
    version=st.sampled_from([b"1.1", b"1.1", b"1.1", b"1.0"]),
    places=PLACES,
    waits=st.booleans(),
)
def test_what_a_body_holds_is_no_request(
    front: Front,
    lengths: list[bytes],
    codings: list[bytes],
    chunks: bytes,
    path: bytes,
    version: bytes,
    places: list[int],
    waits: bool,
) -> None:
    content = b"class:1" + b" " * 5 + HIDDEN
    # A coding whose name is like any other frames nothing: with a length beside it, the body is what the length says.
    body = chunks % (len(content), content) if {*codings} - OTHER_NAMES else content
    fields = [each % ((len(body),) * each.count(b"%d")) for each in lengths] + codings
    # A field that some parser may take for the framing is not the first: there it might count as a part of the target.
    head = b"POST %b HTTP/%b\r\nHost: t\r\n%b\r\n" % (path, version, b"".join(each + b"\r\n" for each in fields))
    said = front.ask(cut(head + body + AFTER, places), waits=waits)
    framing = [each for each in (*lengths, *codings) if each not in OTHER_NAMES]
    if not framing:
        return  # no body: what follows the head are requests, or nonsense
    assert not any("/hidden" in str(answer.body) for answer in said.answers)
    is_length = len(framing) == 1 and framing[0] in PLAIN_LENGTHS
    is_chunked = len(framing) == 1 and framing[0] in PLAIN_CODINGS and chunks in PLAIN_CHUNKS
    first, *more = said.answers
    if (is_length or is_chunked) and version == b"1.1":
        assert first.status == {b"/predict": 200, b"/nothing": 404}[path]
        assert [answer.status for answer in more] == ([] if first.says_close else [200])
    elif is_length or is_chunked:  # of HTTP/1.0, where chunks are to be the connection's end, too
        assert first.says_close
        assert not more
    else:
        assert first.status in ({400, 501} if path == b"/predict" else {400, 404, 501})
        assert not more
        assert said.has_ended
