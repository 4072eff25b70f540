"""Traces and ids of requests: read as they were written, or none."""

import hypothesis.strategies as st
import pytest
from hypothesis import assume, example, given

from service.domain.backend import Target
from service.monitoring.signed_ids import NO_CLASS, PredictionIdInvalid, PredictionIds, target_bytes
from service.persistence.signing_keys import SigningKeys
from service.telemetry.trace_context import read_context, write_parent
from tests.fuzz.cost import bounded
from tests.fuzz.profile import fuzzed
from tests.fuzz.strategies import HEADER_BYTES

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
