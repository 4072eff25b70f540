"""Reads and writes a request's trace headers: W3C Trace Context (https://www.w3.org/TR/trace-context/)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

TRACEPARENT = b"traceparent"
TRACESTATE = b"tracestate"
# Version, trace, parent, flags; a later version may have more behind a dash (section 3.2.4).
_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
# Section 3.3.1.3; a value does not end with a space.
_KEY = rb"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
_MEMBER = re.compile(rb"(%b)=[ -+\--<>-~]{0,255}[!-+\--<>-~]" % _KEY)
NO_TRACE = b"0" * 32
NO_SPAN = b"0" * 16
SAMPLED = 0x01
MOST_MEMBERS = 32
# As much as must be passed on (section 3.3.1.5). gRPC servers refuse calls with more than 8 KiB of headers.
LONGEST_STATE = 512


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The caller's trace context."""

    trace_id: str
    span_id: str  # of the caller
    is_sampled: bool
    state: str  # of other systems, passed on as it is


def read_context(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """Return the context in a request's headers; None if it is missing or invalid."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == TRACEPARENT:
            parents.append(value)
        elif name == TRACESTATE:
            states.append(value)
    found = _PARENT.fullmatch(parents[0].strip(b" \t")) if len(parents) == 1 else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more) or trace_id == NO_TRACE or span_id == NO_SPAN:
        return None
    is_sampled = bool(int(flags, 16) & SAMPLED)
    return TraceContext(trace_id.decode(), span_id.decode(), is_sampled, _state(b",".join(states)) if states else "")


def write_parent(trace_id: str, span_id: str) -> str:
    """Return the `traceparent` of a recorded span."""
    return f"00-{trace_id}-{span_id}-{SAMPLED:02x}"


def _state(text: bytes) -> str:
    """Return a valid `tracestate` as a whole, else nothing."""
    members = [member for each in text.split(b",") if (member := each.strip(b" \t"))]
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in found if match is not None}
    state = b",".join(members)
    if len(keys) < len(members) or len(members) > MOST_MEMBERS or len(state) > LONGEST_STATE:
        return ""
    return state.decode()
