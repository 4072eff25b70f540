"""What of a traceparent and a tracestate is understood, by the W3C's rules."""

import pytest

from service.telemetry.trace_context import TraceContext, read_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01".encode()


def read(*parents: bytes, states: tuple[bytes, ...] = ()) -> TraceContext | None:
    parent_headers = [(b"traceparent", each) for each in parents]
    return read_context([(b"host", b"t"), *parent_headers, *((b"tracestate", each) for each in states)])


@pytest.mark.parametrize(
    ("parent", "is_sampled"),
    [
        (GOOD, True),
        (b" " + GOOD + b"\t", True),
        (GOOD[:-2] + b"00", False),
        (GOOD[:-2] + b"02", False),  # a flag of a later level
        (GOOD[:-2] + b"ff", True),
        (b"cc" + GOOD[2:], True),  # of a later version what is known of it
        (b"cc" + GOOD[2:] + b"-what-comes", True),
    ],
)
def test_a_context_is_read(parent: bytes, is_sampled: bool) -> None:
    assert read(parent) == TraceContext(TRACE, SPAN, is_sampled, "")


@pytest.mark.parametrize(
    "parents",
    [
        (),
        (b"",),
        (b"ff" + GOOD[2:],),
        (GOOD + b"-more",),  # version 00 has no more
        (GOOD + b".",),
        (b"cc" + GOOD[2:] + b".more",),
        (GOOD.upper(),),
        (GOOD[:-1],),
        (GOOD[1:],),
        (b"00-" + b"0" * 32 + GOOD[35:],),
        (GOOD[:36] + b"0" * 16 + b"-01",),
        (GOOD.replace(b"4b", b"4g"),),
        (GOOD.replace(b"-", b"_"),),
        (GOOD, GOOD),
        (b"\xff" * 55,),
    ],
)
def test_what_is_no_context_is_ignored(parents: tuple[bytes, ...]) -> None:
    assert read(*parents, states=(b"a=1",)) is None


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((b"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",), "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ((b"a=1", b"b=2"), "a=1,b=2"),
        ((b" a=1 ,\t, b=2 ",), "a=1,b=2"),
        ((b"tenant-1@vendor=x y",), "tenant-1@vendor=x y"),
        ((b",".join(b"k%d=v" % number for number in range(32)),), ",".join(f"k{number}=v" for number in range(32))),
        ((b",".join(b"k%d=v" % number for number in range(33)),), ""),
        ((b"a=1,a=2",), ""),
        ((b"A=1",), ""),
        ((b"a=1,b",), ""),
        ((b"a=1=2",), ""),
        ((b"a=caf\xc3\xa9",), ""),
        ((b"a=1\r\nx: y",), ""),
        ((b"a=" + b"x" * 600,), ""),
        ((b"",), ""),
    ],
)
def test_a_state_is_passed_on_whole_or_not_at_all(states: tuple[bytes, ...], expected: str) -> None:
    assert read(GOOD, states=states) == TraceContext(TRACE, SPAN, True, expected)
