"""Bodies, parameters and headers of requests: read as they were written, or refused by an error of ours."""

import base64
import contextlib
import ipaddress
import json
from email.message import Message
from typing import Any
from urllib.parse import urlencode

import hypothesis.strategies as st
import pytest
from hypothesis import assume, example, given

from service.config.settings import Settings
from service.domain.backend import ItemError
from service.errors.request import BodyInvalid, HostNotAllowed, ParameterInvalid, TooManyImages
from service.http import parameters
from service.http.images import header_parameters
from service.http.images.json_document import split_json
from service.http.images.multipart import LONGEST_BOUNDARY, split_multipart
from service.http.images.steps import at_once
from service.http.server.clients import Client, Clients
from service.http.server.request_checks import RequestChecks
from service.process.listening import PUBLIC
from tests.fuzz.cost import bounded
from tests.fuzz.profile import fuzzed
from tests.fuzz.strategies import HEADER_BYTES, NUMBERS

MAX_IMAGES = 8
BOUNDARY_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'()+_,-./:=?"
BOUNDARIES = st.text(BOUNDARY_CHARACTERS, min_size=1, max_size=LONGEST_BOUNDARY)


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
