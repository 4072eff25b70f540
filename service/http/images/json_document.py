"""A JSON request, taken apart into its images.

The long strings of a large document are taken out before it is parsed and decoded piece by piece: parsing and decoding
30 MB in one go would stop the event loop for a quarter of a second.
"""

import base64
import binascii
import json

from pydantic import ValidationError

from service.domain.backend import ItemError
from service.errors.request import BodyInvalid, TooManyImages
from service.http.images.steps import WINDOW_BYTES, Steps
from service.http.schemas.predict import PredictJson

SMALL_BYTES = 64 * 1024  # of a document that is parsed as it is
SHORT_BYTES = 1024  # of a string that stays in the document
BYTES_PER_IMAGE = 2 * SHORT_BYTES  # of a document without its long strings
MOST_BACKSLASHES = 64  # before a quote
LONGEST_ESCAPE = 6  # \u002f
# In the place of a string that was taken out: no base64 has this character, which must be escaped in JSON.
MARK = "\0"
ESCAPED_MARK = b"\\u0000"
Span = tuple[int, int]  # of a string in the body, without its quotes


def split_json(body: bytes, max_images: int) -> Steps[list[bytes | ItemError]]:
    """Return the images, in order; one whose base64 is wrong is an ItemError.

    Raises:
        BodyInvalid: it is not the document that is asked for.
        TooManyImages: it has more than `max_images` objects.
    """
    spans: list[Span] = []
    document = body if len(body) <= SMALL_BYTES else _without_long_strings(body, spans, max_images)
    _require_values(document, max_images)
    try:
        parsed = PredictJson.model_validate_json(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(step) for step in first["loc"]) or "the document"
        raise BodyInvalid(f"{place}: {first['msg']}") from error
    images: list[bytes | ItemError] = []
    for instance in parsed.instances:
        try:
            if spans and instance.b64.startswith(MARK):
                images.append((yield from _decode_long(body, *spans[int(instance.b64[1:])])))
            else:
                images.append(base64.b64decode(instance.b64, validate=True))
        except (binascii.Error, ValueError) as error:
            images.append(ItemError("base64_invalid", f"The value of b64 is not base64 (RFC 4648): {error}."))
    return images


def _require_values(document: bytes, max_images: int) -> None:
    """Raise if a document has far too many values, before any is parsed."""
    # These characters never occur in base64, so counting them bounds the values. Millions of
    # values would cost the whole gateway seconds and gigabytes.
    if document.count(b"{") > max_images + 1:
        raise TooManyImages(max_images)
    if document.count(b",") + document.count(b"[") + document.count(b":") > 3 * max_images + 16:
        raise BodyInvalid("it has far more values than images are allowed")


def _without_long_strings(body: bytes, spans: list[Span], max_images: int) -> bytes:
    """Return the document with a number in the place of each long string; adds where they are to `spans`."""
    most_quotes = 2 * (3 * max_images + 16)
    most_bytes = SMALL_BYTES + BYTES_PER_IMAGE * max_images
    pieces: list[bytes] = []
    position = num_quotes = num_bytes = 0
    while (start := body.find(b'"', position)) >= 0:
        end, is_escaped = start, True
        while is_escaped:
            end = body.find(b'"', end + 1)
            num_quotes += 1
            if end < 0:
                raise BodyInvalid("a string of the document has no end")
            if num_quotes > most_quotes:
                _require_values(b"".join(pieces), max_images)
                raise BodyInvalid("it has far more values than images are allowed")
            before = body[max(start + 1, end - MOST_BACKSLASHES) : end]
            num_backslashes = len(before) - len(before.rstrip(b"\\"))
            if num_backslashes == MOST_BACKSLASHES:
                raise BodyInvalid("a string of the document has a row of backslashes, which is no base64")
            is_escaped = num_backslashes % 2 == 1
        if end - start > SHORT_BYTES:
            num_bytes += start - position
            pieces += [body[position : start + 1], ESCAPED_MARK, str(len(spans)).encode(), b'"']
            spans.append((start + 1, end))
        else:
            num_bytes += end - position
            pieces.append(body[position : end + 1])
        if num_bytes > most_bytes:
            break
        position = end + 1
    else:
        pieces.append(body[position : position + most_bytes + 1])
        num_bytes += len(pieces[-1])
    document = b"".join(pieces)
    if num_bytes > most_bytes:
        _require_values(document[:most_bytes], max_images)
        raise BodyInvalid("it has far more text than images")
    if document.count(ESCAPED_MARK) != len(spans):
        raise BodyInvalid("a string of the document has the character U+0000, which is no base64")
    return document


def _decode_long(body: bytes, start: int, end: int) -> Steps[bytes]:
    """Return what a string of the body means, decoded piece by piece; raises ValueError if it is no base64."""
    pieces, rest = [], b""
    while start < end:
        stop = min(start + WINDOW_BYTES, end)
        if stop < end and (escape := body.rfind(b"\\", stop - LONGEST_ESCAPE, stop)) >= 0:
            stop = escape
        text = body[start:stop]
        if b"\\" in text:  # PHP, for one, writes each slash as \/
            text = json.loads(b'"' + text + b'"').encode("ascii")
        text = rest + text
        num_whole = len(text) if stop == end else len(text) // 4 * 4
        piece = base64.b64decode(text[:num_whole], validate=True)
        if stop < end and len(piece) * 4 != num_whole * 3:
            raise ValueError("padding before the end")
        pieces.append(piece)
        rest = text[num_whole:]
        start = stop
        yield
    return b"".join(pieces)
