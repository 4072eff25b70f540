"""The packed request, which all backends send to the handler: items under "0", "1", ..., their options as JSON.

The handler's half is handlers/packed_request.py.
"""

import json
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from service.domain.backend import (
    MOST_CLASSES,
    BatchAnswer,
    BatchOptions,
    ItemError,
    ItemResult,
    ProbabilityVector,
    ProfileKind,
    Ranking,
)
from service.errors.gateway import BackendFailed

OPTIONS_KEY = "options"
LONGEST_TOLD = 200  # of what cannot be read, in an error
LARGEST = sys.float_info.max
# What a document of another form, or one that is nested too deeply, makes its reader raise.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
MAX_CACHED = 256  # nearly every batch has one of a few options and numbers of items


def packed_fields(items: Sequence[bytes], options: BatchOptions) -> list[tuple[str, bytes]]:
    """Return names and contents of a packed request's fields; the contents of items are not copied."""
    packed = _packed_options(options.top_k, options.probabilities, options.profile)
    return [*zip(_item_keys(len(items)), items, strict=True), (OPTIONS_KEY, packed)]


@lru_cache(MAX_CACHED)
def _packed_options(top_k: int, probabilities: bool, profile: ProfileKind | None) -> bytes:
    profiled = {} if profile is None else {"profile": profile}
    return json.dumps({"top_k": top_k, "probabilities": probabilities, **profiled}).encode()


@lru_cache(MAX_CACHED)
def _item_keys(num_items: int) -> Sequence[str]:
    return tuple(str(index) for index in range(num_items))


def parse_answer(body: bytes) -> BatchAnswer:
    """Return the handler's answer to a packed request; BackendFailed if the body is not one."""
    try:
        document = json.loads(body)
        timings = document["timings_ms"]
        return BatchAnswer(
            results=[_parse_result(result) for result in document["results"]],
            decode_seconds=_parse_seconds(timings["decode"]),
            compute_seconds=_parse_seconds(timings["compute"]),
            profile=document.get("profile"),
        )
    except UNREADABLE as error:
        reason = repr(error)[:LONGEST_TOLD]
        raise BackendFailed(f"its answer cannot be read ({reason}): {body[:LONGEST_TOLD]!r}") from error


def _parse_seconds(milliseconds: Any) -> float:
    seconds: float = milliseconds / 1000
    if not 0 <= seconds <= LARGEST:  # NaN is neither
        raise ValueError(f"a time of {milliseconds} ms")
    return seconds


def _parse_result(result: dict[str, Any]) -> ItemResult:
    if "top_k" in result:
        ranking = [(index, probability) for index, probability in result["top_k"]]
        for index, probability in ranking:
            if type(index) is not int or not (0 <= index < MOST_CLASSES and -LARGEST <= probability <= LARGEST):
                raise ValueError(f"a class {index} with the probability {probability}")
        if not ranking:
            raise ValueError("a ranking without a class")
        return Ranking(ranking)
    if "probabilities" in result:
        return ProbabilityVector([float(each) for each in result["probabilities"]])
    return ItemError(str(result["error"]["code"]), str(result["error"]["message"]))
