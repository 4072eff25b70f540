"""The packed request, which all backends send to the handler: items under "0", "1", ..., their options as JSON.

The handler's half is handlers/packed_request.py.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from service.domain.backend import (
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
            decode_seconds=timings["decode"] / 1000,
            compute_seconds=timings["compute"] / 1000,
            profile=document.get("profile"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BackendFailed(f"its answer cannot be read ({error!r}): {body[:200]!r}") from error


def _parse_result(result: dict[str, Any]) -> ItemResult:
    if "top_k" in result:
        return Ranking([(index, probability) for index, probability in result["top_k"]])
    if "probabilities" in result:
        return ProbabilityVector(result["probabilities"])
    return ItemError(str(result["error"]["code"]), str(result["error"]["message"]))
