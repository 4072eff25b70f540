"""What a handler answers: the body of a worker's answer, and of TorchServe's."""

import json
from math import isfinite
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given

from service.backends.packed_request import parse_answer
from service.domain.backend import BatchAnswer, ItemError, ProbabilityVector, Ranking
from service.errors.gateway import BackendFailed
from tests.fuzz.cost import require_short
from tests.fuzz.profile import fuzzed

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10)
    | st.sampled_from([10**400, -(10**400), 2**63, 65_535, 65_536])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
RESULTS = (
    st.fixed_dictionaries({"top_k": st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1)), min_size=1, max_size=4)})
    | st.fixed_dictionaries({"probabilities": st.lists(st.floats(0, 1), max_size=4)})
    | st.fixed_dictionaries({"error": st.fixed_dictionaries({"code": st.text(), "message": st.text()})})
)


def spoilt(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return documents like this strategy's, with anything in the place of some parts."""
    return value | JSON_VALUES


DOCUMENTS = st.fixed_dictionaries(
    {
        "results": spoilt(
            st.lists(
                RESULTS
                | st.fixed_dictionaries(
                    {"top_k": spoilt(st.lists(spoilt(st.tuples(JSON_VALUES, JSON_VALUES)), max_size=3))}
                )
                | st.fixed_dictionaries({"probabilities": spoilt(st.lists(JSON_VALUES, max_size=3))})
                | st.fixed_dictionaries(
                    {"error": spoilt(st.fixed_dictionaries({"code": JSON_VALUES, "message": JSON_VALUES}))}
                )
                | JSON_VALUES,
                max_size=3,
            )
        ),
        "timings_ms": spoilt(st.fixed_dictionaries({"decode": JSON_VALUES, "compute": JSON_VALUES})),
    },
    optional={"profile": JSON_VALUES},
)
BODIES = (
    DOCUMENTS.map(lambda document: json.dumps(document).encode())
    | st.binary(max_size=30)
    | st.sampled_from([b"[" * 100_000, b'{"results":' * 50_000, b"1" * 5000, b'"\\ud800"', b"\xff\xfe1\0"])
)


def require_well_formed(answer: BatchAnswer) -> None:
    """Fail unless the gateway can work with it."""
    assert isinstance(answer.decode_seconds, float)
    assert answer.decode_seconds >= 0
    assert answer.compute_seconds >= 0
    for result in answer.results:
        match result:
            case Ranking(top_k):
                assert top_k
                for index, probability in top_k:
                    assert type(index) is int
                    assert 0 <= index < 65_535  # signed ids have two bytes for it
                    assert isinstance(probability, int | float)
                    assert isfinite(probability)
            case ProbabilityVector(probabilities):
                assert all(isinstance(each, int | float) for each in probabilities)
            case ItemError(code, message):
                assert isinstance(code, str)
                assert isinstance(message, str)
            case _:
                raise AssertionError(result)


# JSON that is nested too deeply, times that no float holds, and rankings that no class has.
@fuzzed(150)
@example(body=b"[" * 100_000)
@example(body=json.dumps({"results": [], "timings_ms": {"decode": 10**400, "compute": 0}}).encode())
@example(body=json.dumps({"results": [{"top_k": []}], "timings_ms": {"decode": 0, "compute": 0}}).encode())
@example(body=json.dumps({"results": [{"top_k": [["0", 1.0]]}], "timings_ms": {"decode": 0, "compute": 0}}).encode())
@example(body=json.dumps({"results": [], "timings_ms": {"decode": float("nan"), "compute": 0}}).encode())
@given(body=BODIES)
def test_what_a_handler_answers_is_well_formed_or_a_failure_of_the_backend(body: bytes) -> None:
    try:
        answer = parse_answer(body)
    except BackendFailed as error:
        require_short(error, 2000)
    else:
        require_well_formed(answer)
