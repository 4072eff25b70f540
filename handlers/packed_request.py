"""What a request asks of the handler: its items, and the options that a gateway packs beside them.

The file travels inside every archive, beside the handler.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:  # in the repository
    from handlers.image_decoding import brief
else:  # in an archive
    from image_decoding import brief

DEFAULT_TOP_K = 5
# TorchServe would take any number; a gateway's batch is far smaller.
MAX_ITEMS = 1024
MAX_CACHED, MAX_CACHED_BYTES = 64, 256  # of options: how many, and how long each may be


def unpack(row: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any] | None]:
    """Split one request into its items and, of a packed one, its options; a plain one has None.

    Raises ValueError when the items or the options are not what a request may hold.
    """
    for key in ("body", "data"):
        if key in row and "options" not in row:
            return [row[key]], None
    keys = [str(index) for index in range(len(row) - ("options" in row))]
    if not keys or any(key not in row for key in keys):
        sent = ", ".join(sorted(row)[:20]) or "nothing"
        raise ValueError(f'Items must have the keys "0", "1", ... without a gap; sent: {sent[:200]}.')
    if len(keys) > MAX_ITEMS:
        raise ValueError(f"{len(keys)} items in one request; allowed are {MAX_ITEMS}.")
    return [row[key] for key in keys], read_options(row.get("options", b"{}"))


def read_options(sent: Any) -> dict[str, Any]:
    """Check a packed request's options and fill in what is missing; ValueError says what is wrong."""
    if isinstance(sent, bytes | bytearray) and len(sent) <= MAX_CACHED_BYTES:
        return dict(known_options(bytes(sent)))
    return check_options(sent)


@lru_cache(MAX_CACHED)
def known_options(sent: bytes) -> Mapping[str, Any]:
    """Return what check_options does, at once where the same bytes came before: of a gateway they nearly always did."""
    return check_options(sent)


def check_options(sent: Any) -> dict[str, Any]:
    """Check a packed request's options, which may be of any kind."""
    try:
        options = sent if isinstance(sent, dict) else json.loads(sent)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"options is not JSON: {brief(error)}.") from error
    if not isinstance(options, dict):
        raise ValueError(f"options must be a JSON object, not {type(options).__name__}.")  # noqa: TRY004 - not our error
    # Fields that this version does not know are let pass: a gateway may be newer than the archive.
    top_k, probabilities = options.get("top_k", DEFAULT_TOP_K), options.get("probabilities", False)
    if not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1:
        raise ValueError(f"options.top_k must be an integer from 1, not {json.dumps(top_k)[:200]}.")
    if not isinstance(probabilities, bool):
        raise ValueError(f"options.probabilities must be true or false, not {json.dumps(probabilities)[:200]}.")  # noqa: TRY004
    profile = options.get("profile")
    if profile not in (None, "table", "trace"):
        raise ValueError(f'options.profile must be "table" or "trace", not {json.dumps(profile)[:200]}.')
    return {"top_k": top_k, "probabilities": probabilities, "profile": profile}
