"""JSON documents that are not quite what they should be."""

import json
from typing import Any

import hypothesis.strategies as st

DEEP = b"[" * 100_000

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70_000) | st.floats() | st.text(max_size=5)
    | st.sampled_from([10**400, 2**63, "\ud800", "\0", "../x", "/etc/passwd", "a" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@st.composite
def changed(draw: st.DrawFn, document: Any) -> bytes:
    """Return a JSON document in which one value, somewhere, is another, or missing; or no document."""
    copy = json.loads(json.dumps(document))
    place: Any = copy
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        inner = place[key]
        if isinstance(inner, dict | list) and inner and draw(st.booleans()):
            place = inner
            continue
        if draw(st.booleans()):
            place[key] = draw(ANY_JSON)
        else:
            del place[key]
        break
    written = json.dumps(copy).encode()
    if draw(st.integers(0, 9)):
        return written
    at = draw(st.integers(0, len(written)))
    return draw(
        st.sampled_from([written[:at], DEEP, b"\xff" + written, written + b"}", b"", b'"\\ud800"', b"1" * 5000])
    )
