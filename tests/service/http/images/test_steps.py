"""The worst bodies of 32 MB that we know: each step of taking them apart is short, by the processor's time."""

import base64
import time
from collections.abc import Callable, Generator

import pytest

from service.errors.gateway import GatewayError
from service.http.body import Images, split_body

MEBIBYTE = 1024 * 1024
SIZE = 32 * MEBIBYTE
MAX_IMAGES = 256
LONGEST_STEP_SECONDS = 0.1
FORM = b"multipart/form-data; boundary="
HEAD = b'\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
JSON = b"application/json"


def filled(before: bytes, unit: bytes, after: bytes = b"") -> bytes:
    """Return a body of SIZE with `unit` again and again."""
    return before + unit * ((SIZE - len(before) - len(after)) // len(unit)) + after


BODIES: dict[str, tuple[bytes, Callable[[], bytes]]] = {
    "false boundaries": (FORM + b"a", lambda: filled(b"--a" + HEAD, b"\r\n--aX", b"\r\n--a--")),
    "nearly boundaries": (FORM + b"a", lambda: filled(b"--a" + HEAD, b"\r\n--", b"\r\n--a--")),
    "dashes": (FORM + b"-" * 70, lambda: filled(b"--" + b"-" * 70 + HEAD, b"-")),
    "lines": (FORM + b"a", lambda: filled(b"--a" + HEAD, b"\r\n", b"\r\n--a--")),
    "parts": (FORM + b"a", lambda: filled(b"", b"--a" + HEAD + b"\r\n", b"--a--")),
    "headers without end": (FORM + b"a", lambda: filled(b"--a\r\n", b"A: b\r\n")),
    "a header without end": (FORM + b"a", lambda: filled(b"--a\r\nContent-Disposition: form-data", b";")),
    "quotes in a boundary": (FORM + b'"' + b";" * 60_000, lambda: b"--a"),
    "headers in each part": (
        FORM + b"a",
        lambda: b"".join(b"--a" + b"\r\na:b" * 15 + HEAD + b"x\r\n" for _ in range(256)) + b"--a--",
    ),
    "an image": (FORM + b"a", lambda: filled(b"--a" + HEAD, b"\0", b"\r\n--a--")),
    "one string": (JSON, lambda: filled(b'{"instances":[{"b64":"', b"AAAA", b'"}]}')),
    "escapes": (JSON, lambda: filled(b'{"instances":[{"b64":"', b"\\u0041", b'"}]}')),
    "slashes": (JSON, lambda: filled(b'{"instances":[{"b64":"', b"\\/", b'"}]}')),
    "escaped quotes": (JSON, lambda: filled(b'{"instances":[{"b64":"', b'\\"', b'"}]}')),
    "backslashes": (JSON, lambda: filled(b'{"instances":[{"b64":"', b"\\\\", b'"}]}')),
    "spaces": (JSON, lambda: filled(b'{"instances":', b" ", b"[]}")),
    "numbers": (JSON, lambda: filled(b'{"instances":[', b"1,", b"1]}")),
    "a number": (JSON, lambda: filled(b'{"instances":', b"9", b"}")),
    "brackets": (JSON, lambda: filled(b'{"instances":', b"[")),
    "objects": (JSON, lambda: filled(b'{"instances":[', b'{"b64":""},', b"{}]}")),
    "strings after a long one": (JSON, lambda: filled(b'{"instances":[{"b64":"' + b"A" * 30 * MEBIBYTE + b'"', b'""')),
    "quotes": (JSON, lambda: filled(b"", b'"')),
    "no ASCII": (JSON, lambda: filled(b'{"instances":[{"b64":"', "é".encode(), b'"}]}')),
}


def longest_step(content_type: bytes, body: bytes) -> tuple[float, Images | str]:
    """Return the processor's time of the longest step, and what came out: images or an error's code."""
    started = time.thread_time()
    longest = 0.0
    try:
        steps = split_body(body, {b"content-type": content_type}, MAX_IMAGES)
        if not isinstance(steps, Generator):
            return time.thread_time() - started, steps
        while True:
            longest = max(longest, time.thread_time() - started)
            started = time.thread_time()
            next(steps)
    except StopIteration as end:
        return max(longest, time.thread_time() - started), end.value
    except GatewayError as error:
        return max(longest, time.thread_time() - started), error.code


@pytest.mark.parametrize("name", BODIES)
def test_no_body_stops_the_event_loop(name: str) -> None:
    content_type, make = BODIES[name]
    seconds, found = longest_step(content_type, make())
    print(f"\n{name}: {seconds * 1000:.1f} ms, {found if isinstance(found, str) else len(found)}")
    assert seconds < LONGEST_STEP_SECONDS


@pytest.mark.parametrize("unit", [b"AAAA", b"Zm9v", b"\\/\\/\\/\\/", b"\\u0041BCD"])
def test_a_long_string_is_decoded_as_a_whole(unit: bytes) -> None:
    for tail in (b"", b"QQ==", b"QUI=", b"Q"):
        text = unit * (3 * MEBIBYTE // len(unit)) + tail
        plain = text.replace(b"\\/", b"/").replace(b"\\u0041", b"A")
        _, found = longest_step(JSON, b'{"instances":[{"b64":"QQ=="},{"b64":"' + text + b'"}]}')
        assert not isinstance(found, str)
        assert found[0] == b"A"
        if tail == b"Q":
            assert getattr(found[1], "code", "") == "base64_invalid"
        else:
            assert found[1] == base64.b64decode(plain, validate=True)
