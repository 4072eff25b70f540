"""Bodies, parameters, headers and ids of requests: read as they were written, or refused by an error of ours.

What the whole gateway does with them is tried last: no answer is a server's error.
"""

import base64
import contextlib
import ipaddress
import json
from collections.abc import Iterator
from email.message import Message
from typing import Any
from urllib.parse import quote, quote_from_bytes, urlencode

import hypothesis.strategies as st
import pytest
from hypothesis import assume, example, given

from service.config.settings import Settings
from service.domain.backend import ItemError, Target
from service.errors.request import BodyInvalid, HostNotAllowed, ParameterInvalid, TooManyImages
from service.http import parameters
from service.http.images import header_parameters
from service.http.images.json_document import split_json
from service.http.images.multipart import LONGEST_BOUNDARY, split_multipart
from service.http.images.steps import at_once
from service.http.server.clients import Client, Clients
from service.http.server.request_checks import RequestChecks
from service.monitoring.signed_ids import NO_CLASS, PredictionIdInvalid, PredictionIds, target_bytes
from service.persistence.signing_keys import SigningKeys
from service.process.listening import PUBLIC
from service.telemetry.trace_context import read_context, write_parent
from tests.fuzz.cost import bounded
from tests.fuzz.front import Front, opened_front
from tests.fuzz.profile import fuzzed
from tests.gateway import TOKEN

MAX_IMAGES = 8
BOUNDARY_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'()+_,-./:=?"
BOUNDARIES = st.text(BOUNDARY_CHARACTERS, min_size=1, max_size=LONGEST_BOUNDARY)
HEADER_BYTES = st.binary(max_size=60) | st.text(';=", \tabf-:.[]%0193\\', max_size=60).map(str.encode)


# Forms.


def form(images: list[bytes], boundary: str, name: str = 'name="file"', more: str = "") -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\n{more}\r\n".encode()
    return b"".join(head + image + b"\r\n" for image in images) + f"--{boundary}--\r\n".encode()


NAMES = st.sampled_from(['name="file"', "name=file", 'filename="a;name=x\\".png"; name="file"', 'NAME="fi\\le"; x'])
MORE = st.sampled_from(["", "Content-Type: image/png\r\n", "X: y\r\n" * 15])


@fuzzed(60)
@given(st.lists(st.binary(max_size=100), min_size=1, max_size=MAX_IMAGES), BOUNDARIES, NAMES, MORE)
def test_forms_are_read_as_they_were_written(images: list[bytes], boundary: str, name: str, more: str) -> None:
    assume(not any(f"\r\n--{boundary}".encode() in b"\r\n" + image + b"\r\n--" for image in images))
    assume("\\l" not in name)
    body = form(images, boundary, name, more)
    with bounded(len(body)):
        assert at_once(split_multipart(body, boundary.encode(), MAX_IMAGES)) == images


FORM_PARTS = st.sampled_from(
    [
        *(b"--b", b"\r\n--b", b"--b--", b"\r\n", b"\r\n\r\n", b"--", b"\n", b"\r", b":", b"Content-Disposition: "),
        *(b'Content-Disposition: form-data; name="file"\r\n\r\n', b'; name="', b"name=file", b"\\", b'"', b"X" * 5000),
        *(form([b"1", b"2"], "b"), b"--b\r\n" * 20, b"\r\n--b" * 20, b"A: b\r\n" * 20),
    ]
)


@fuzzed(150)
@given(st.lists(FORM_PARTS | st.binary(max_size=6), max_size=12).map(b"".join), st.sampled_from([b"b", b"", b"b" * 71]))
def test_rubbish_is_no_form(body: bytes, boundary: bytes) -> None:
    with bounded(len(body)):
        try:
            images = at_once(split_multipart(body, boundary, MAX_IMAGES))
        except (BodyInvalid, TooManyImages):
            return
    assert len(images) <= MAX_IMAGES
    assert all(image in body for image in images)


TOKENS = st.text("!#$%&'*+-.^_`|~09azAZ", min_size=1, max_size=8)


@fuzzed(80)
@given(TOKENS, st.dictionaries(TOKENS.map(str.lower), st.text('abc; =,"\\/', max_size=8), max_size=4))
def test_parameters_are_read_as_they_were_written(value: str, given_: dict[str, str]) -> None:
    written = value
    for name, text in given_.items():
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        written += f'; {name}="{escaped}"'
    found = header_parameters.read_parameters(written.encode())
    assert found == (value.lower().encode(), {name.encode(): text.encode() for name, text in given_.items()})


@fuzzed(100)
@example(b"a" + b'; b="' * 2000)
@example(b'a; b="' + b"\\" * 8000)
@given(HEADER_BYTES)
def test_any_header_has_parameters_or_none(header: bytes) -> None:
    with bounded(len(header), bytes_per_byte=128):  # of a quoted string, where the pattern could go back
        value, found = header_parameters.read_parameters(header)
    assert value == header.partition(b";")[0].strip(b" \t").lower()
    assert all(name in header.lower() for name in found)


@fuzzed(60)
@given(BOUNDARIES)
def test_the_standard_library_reads_the_same_boundary(boundary: str) -> None:
    message = Message()
    message["Content-Type"] = f'multipart/form-data; boundary="{boundary}"'
    _, found = header_parameters.read_parameters(message["Content-Type"].encode())
    assert found[b"boundary"].decode() == message.get_boundary()


# JSON.

IMAGES = st.binary(max_size=60) | st.integers(700, 40_000).map(lambda size: bytes(range(256)) * (size // 256))


@fuzzed(60)
@given(st.lists(IMAGES, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_base64_is_read_as_it_was_written(images: list[bytes], escapes: bool, indent: int | None) -> None:
    document = {"instances": [{"b64": base64.b64encode(each).decode()} for each in images]}
    body = json.dumps(document, indent=indent).encode()
    if escapes:
        body = body.replace(b"/", b"\\/").replace(b"+", b"\\u002b")
    with bounded(len(body)):
        assert at_once(split_json(body, MAX_IMAGES)) == images


LONG = base64.b64encode(bytes(range(256)) * 260)
JSON_PARTS = st.sampled_from(
    [
        *(
            b'{"instances":[',
            b'{"b64":"',
            b'"}',
            b"]}",
            b",",
            b'"',
            b"\\",
            b'\\"',
            b"\\u0000",
            b"\\ud800",
            b"\\u00",
            b"=",
        ),
        *(b"[" * 2000, b'{"a":' * 2000, b"1" * 5000, b"NaN", b"\xff", b"\0", b" ", LONG, LONG[:1500], b"\\u00000"),
        *(
            b'{"instances":[{"b64":"' + LONG,
            b'{"instances":[{"b64":"' + LONG + b'"}]}',
            b"\\" * 65,
            b"\\/",
            b"A" * 1025,
        ),
    ]
)


@fuzzed(150)
@given(st.lists(JSON_PARTS | st.binary(max_size=6), max_size=10).map(b"".join))
def test_rubbish_is_no_document(body: bytes) -> None:
    with bounded(len(body)):
        try:
            images = at_once(split_json(body, MAX_IMAGES))
        except (BodyInvalid, TooManyImages):
            return
    assert len(images) <= MAX_IMAGES
    assert all(isinstance(image, bytes | ItemError) for image in images)


# Query and headers of a prediction.

NUMBERS = st.sampled_from(["1", "1000", "0", "-1", "1e3", "1.0", "9" * 30, "9" * 5000, "NaN", " 5", "٣", "1_0", ""])


@fuzzed(100)
@given(
    st.lists(
        st.tuples(st.sampled_from(["model", "version", "label", "top_k", "x"]), NUMBERS | st.text(max_size=5)),
        max_size=4,
    ).map(lambda pairs: urlencode(pairs, errors="replace").encode())
    | st.binary(max_size=30),
    st.dictionaries(
        st.sampled_from([b"x-deadline-ms", b"x-priority", b"other"]),
        NUMBERS.map(str.encode) | st.sampled_from([b"low", b"normal"]) | st.binary(max_size=8),
    ),
)
def test_parameters_are_in_their_range_or_refused(query_string: bytes, headers: dict[bytes, bytes]) -> None:
    try:
        query, found = parameters.read_parameters(query_string, headers)
    except ParameterInvalid:
        return
    assert 1 <= query.top_k <= 1000
    assert found.x_deadline_ms is None or found.x_deadline_ms >= 1
    assert found.x_priority in {"low", "normal"}


@fuzzed(50)
@given(st.text(min_size=1, max_size=20), st.integers(1, 1000), st.integers(1, 10**9))
def test_parameters_of_a_prediction_are_read_as_they_were_written(model: str, top_k: int, deadline: int) -> None:
    assume(not any("\ud800" <= character <= "\udfff" for character in model))
    query_string = urlencode({"model": model, "top_k": top_k}).encode()
    query, found = parameters.read_parameters(query_string, {b"x-deadline-ms": b"%d" % deadline})
    assert (query.model, query.top_k, found.x_deadline_ms) == (model, top_k, deadline)


# Who asks, and for which host.

CLIENTS = Clients(Settings(trusted_proxies="127.0.0.1,10.0.0.0/8"))
PROXY = Client("127.0.0.1", "http", RequestChecks(Settings(), PUBLIC), is_proxy=True)
ADDRESSES = st.ip_addresses().filter(
    lambda each: each.version == 6 or (each not in ipaddress.ip_network("10.0.0.0/8") and str(each) != "127.0.0.1")
)


def plain(address: Any) -> str:
    return str(getattr(address, "ipv4_mapped", None) or address)


@fuzzed(80)
@given(
    ADDRESSES,
    st.lists(st.sampled_from(["10.1.2.3", "127.0.0.1:80", "[::ffff:10.0.0.1]:9"]), max_size=4),
    HEADER_BYTES,
    st.booleans(),
)
def test_the_nearest_address_that_no_proxy_has_is_the_clients(
    address: Any, proxies: list[str], forged: bytes, has_port: bool
) -> None:
    assume(not plain(address).startswith(("10.", "127.0.0.1")))
    shown = (f"[{address}]:1" if address.version == 6 else f"{address}:1") if has_port else str(address)
    rest = [each.encode() for each in (shown, *proxies)]
    found = CLIENTS.forwarded(PROXY, [(b"x-forwarded-for", forged), (b"x-forwarded-for", b", ".join(rest))])
    assert found.address == plain(address)
    assert not found.is_proxy


@fuzzed(100)
@given(st.lists(st.tuples(st.sampled_from([b"x-forwarded-for", b"x-forwarded-proto"]), HEADER_BYTES), max_size=4))
def test_whatever_a_proxy_forwards_is_an_address_and_a_scheme(headers: list[tuple[bytes, bytes]]) -> None:
    found = CLIENTS.forwarded(PROXY, headers)
    ipaddress.ip_address(found.address)
    assert found.scheme in {"http", "https"}


LOCAL = Settings()
OWN_NAMES = ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "[::1]"]
OTHER_NAMES = ["localhost.", "localhost.example.com", "127.0.0.1.example.com", "128.0.0.1", "[::2]", "2130706433", ""]
DOMAINS = st.from_regex(r"([a-z0-9-]{1,9}\.){0,3}[a-z]{1,8}", fullmatch=True).filter(lambda name: name != "localhost")


@fuzzed(60)
@given(st.sampled_from(OWN_NAMES), st.sampled_from(OTHER_NAMES) | DOMAINS, st.sampled_from(["", ":", ":80", ":99999"]))
def test_only_hosts_of_this_machine_are_let_in(own: str, other: str, port: str) -> None:
    checks = RequestChecks(LOCAL, PUBLIC)
    checks.require_host(f"{own}{port}".encode())
    with pytest.raises(HostNotAllowed):
        checks.require_host(f"{other}{port}".encode())


@fuzzed(100)
@given(HEADER_BYTES)
def test_any_host_is_let_in_or_refused(host: bytes) -> None:
    checks = RequestChecks(LOCAL, PUBLIC)
    with contextlib.suppress(HostNotAllowed):
        checks.require_host(host)


# Traces and ids.

HEX = "0123456789abcdef"


@fuzzed(40)
@given(st.text(HEX, min_size=32, max_size=32), st.text(HEX, min_size=16, max_size=16))
def test_a_trace_is_read_as_it_was_written(trace: str, span: str) -> None:
    found = read_context([(b"traceparent", write_parent(trace, span).encode())])
    if set(trace) == {"0"} or set(span) == {"0"}:
        assert found is None
    else:
        assert found is not None
        assert (found.trace_id, found.span_id, found.is_sampled) == (trace, span, True)


STATES = HEADER_BYTES | st.lists(st.sampled_from([b"a=1", b"b=2", b"a@b=c", b"", b"=", b"A=1"]), max_size=40).map(
    b",".join
)


@fuzzed(80)
@example(b"a=" + b" " * 5000, b"00-" + b"1" * 32 + b"-" + b"1" * 16 + b"-01")
@given(STATES, HEADER_BYTES | st.just(b"00-" + b"1" * 32 + b"-" + b"1" * 16 + b"-01"))
def test_a_trace_is_safe_to_pass_on(state: bytes, parent: bytes) -> None:
    with bounded(len(state) + len(parent)):
        found = read_context([(b"traceparent", parent), (b"tracestate", state)])
    if found is not None:
        assert len(found.state) <= 512
        assert found.state.isprintable()
        assert found.state.isascii()


def ids() -> PredictionIds:
    made = PredictionIds(lambda: 1_800_000_000.0)
    made.use(SigningKeys(present=b"p" * 32, previous=None, replaced_at=0))
    return made


IDS = ids()
VERSIONS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True)
CLASSES = st.lists(st.integers(0, NO_CLASS), max_size=20)


@fuzzed(60)
@given(VERSIONS, VERSIONS, CLASSES, st.booleans())
def test_ids_are_read_as_they_were_issued(model: str, version: str, classes: list[int], is_dealt: bool) -> None:
    found = IDS.read(IDS.issue(target_bytes(Target(model, version)), classes, is_dealt=is_dealt))
    assert found.target == Target(model, version)
    assert found.classes == [None if each == NO_CLASS else each for each in classes]
    assert (found.issued_at, found.is_dealt) == (1_800_000_000, is_dealt)


@fuzzed(120)
@given(st.integers(0, 200), st.text(HEX + "A \0é\ud800", max_size=3), st.integers(0, 3))
def test_an_id_that_was_changed_is_none(place: int, part: str, num_left_out: int) -> None:
    issued = IDS.issue(target_bytes(Target("digits", "1.0")), [1, 2], is_dealt=True)
    place %= len(issued) + 1
    changed = issued[:place] + part + issued[place + num_left_out :]
    assume(changed != issued)
    with pytest.raises(PredictionIdInvalid):
        IDS.read(changed)


@fuzzed(60)
@given(st.text(max_size=40) | st.text(HEX, max_size=100))
def test_text_is_no_id(text: str) -> None:
    with pytest.raises(PredictionIdInvalid):
        IDS.read(text)


# The whole gateway.

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
