"""Changes and credentials that a whole gateway gets: no answer is a server's error."""

import json
from collections.abc import Iterator
from urllib.parse import quote, quote_from_bytes, urlencode

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from tests.fuzz.front import Front, opened_front
from tests.fuzz.profile import fuzzed
from tests.fuzz.strategies import NUMBERS
from tests.gateway import TOKEN

TEXTS = st.sampled_from(
    ["", "\0", "a\0b", "\ud800", "1.0", "1.0-int8-dynamic", "digits", "stable", "é", "a" * 300, "../x"]
) | st.text(max_size=5)
ANY = st.recursive(
    st.none() | st.booleans() | TEXTS | st.floats() | st.integers(-2, 101) | st.sampled_from([10**30, 2**63, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
FIELDS = ["weights", "shadows", "sticky_header", "version", "file", "num_workers", "steps", "id", "index", "label"]
MORE_FIELDS = ["min_requests", "min_seconds", "slow_ms", "min_agreement", "wait_seconds", "num_batches"]
CHANGES = [
    *(("PUT", "/traffic"), ("PUT", "/labels/%s"), ("DELETE", "/labels/%s"), ("POST", "/versions")),
    *(("PATCH", "/versions/%s"), ("POST", "/rollouts"), ("POST", "/rollouts/%s/abort"), ("POST", "/rollback")),
    *(("GET", "/events"), ("GET", "/rollouts/%s"), ("GET", "/quality"), ("POST", "/versions/%s/profile")),
]
BODIES = st.dictionaries(st.sampled_from(FIELDS + MORE_FIELDS) | TEXTS, ANY, max_size=4).map(
    lambda document: json.dumps(document).encode()
) | st.sampled_from([b"[" * 60_000, b'{"weights":' * 5000, b"9" * 5000, b'"\\ud800"', b"\xff", b""])
QUERIES = st.lists(
    st.tuples(st.sampled_from(["before", "limit", "reason", "x"]), NUMBERS | TEXTS | st.just(str(2**63))), max_size=2
)
REVISIONS = st.sampled_from([b"*", b'"1"', b'"' + b"9" * 18 + b'"', b'"' + b"9" * 5000 + b'"', b"\xff", b'W/"0"'])


def in_path(text: str) -> str:
    return quote_from_bytes(text.encode("utf-8", "surrogatepass"), safe="")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with opened_front(tmp_path_factory.mktemp("front")) as opened:
        yield opened


# Events before one that no database can number, and half a character in an archive's or a version's name.
@fuzzed(150)
@example(("GET", "/events"), "", [("before", str(2**63))], b"", b"*", b"")
@example(("POST", "/versions"), "", [], b'{"file": "\\ud800"}', b"*", b"")
@example(("POST", "/rollouts"), "", [], b'{"version": "\\ud800"}', b"*", b"")
@given(
    st.sampled_from(CHANGES),
    TEXTS | NUMBERS,
    QUERIES,
    BODIES,
    REVISIONS,
    st.sampled_from([b"", b"x\xff", b"\xed\xa0\x80", b"a" * 300]),
)
def test_no_change_is_a_servers_error(
    front: Front,
    what: tuple[str, str],
    name: str,
    query: list[tuple[str, str]],
    body: bytes,
    based_on: bytes,
    actor: bytes,
) -> None:
    method, path = what
    path = f"/models/digits{path.replace('%s', in_path(name) or '-')}"
    queried = urlencode(query, errors="surrogatepass", quote_via=quote)
    head = f"{method} {path}?{queried} HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
    head += b"If-Match: " + based_on + b"\r\nX-Actor: " + actor + b"\r\nContent-Type: application/json\r\n"
    said = front.ask([head + b"Content-Length: %d\r\n\r\n" % len(body) + body])
    assert [answer.status for answer in said.answers if answer.status >= 500] == []
    assert len(said.answers) == 1


CREDENTIALS = st.sampled_from([b"", b"Bearer", b"Bearer ", b"bearer  x", b"Bearer \xff", b"Basic eDp5", b"x" * 5000])


@fuzzed(40)
@given(CREDENTIALS, CREDENTIALS | st.binary(max_size=8).map(lambda key: key.hex().encode()), st.binary(max_size=4))
def test_no_rubbish_is_a_credential(front: Front, token: bytes, key: bytes, actor: bytes) -> None:
    head = b"PUT /models/digits/traffic HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nIf-Match: *\r\n"
    head += b"Authorization: " + token + b"\r\nX-API-Key: " + key + b"\r\nX-Actor: " + actor.hex().encode()
    said = front.ask([head + b"\r\n\r\n{}"])
    assert {answer.status for answer in said.answers} <= {401, 403, 429}
