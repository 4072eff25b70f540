"""A request's body: taken within bounds, then split into images.

POST /predict feeds its body piece by piece, and http/predict.py limits how long that may take. All other routes
read theirs with `BodyReader.read`.
"""

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from service.domain.backend import ItemError
from service.errors.gateway import BuffersFull
from service.errors.request import (
    BodyInvalid,
    BodyTimeout,
    BodyTooLarge,
    MediaTypeUnsupported,
    StreamTooLarge,
    TooManyImages,
)
from service.http.multipart import split_multipart
from service.http.schemas.predict import PredictJson

# By far the most requests; these types need no parser.
PLAIN_TYPES = frozenset({b"image/png", b"image/jpeg", b"image/webp", b"application/octet-stream"})
RequestHeaders = Mapping[bytes, bytes]
Images = Sequence[bytes | ItemError]  # in the order of the body
MEDIA_TYPES = "image/*, application/octet-stream, multipart/form-data, application/json"


class BodyBudget:
    """The bytes of all bodies that are in memory, from their arrival until their requests are answered."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Add to the count; raise BuffersFull if it would pass the limit."""
        if self._num_bytes + num_bytes > self._max_bytes:
            raise BuffersFull(self._max_bytes)
        self._num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Subtract from the count."""
        self._num_bytes -= num_bytes


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What one request may hold, and how long it may take to arrive."""

    max_bytes: int
    max_images: int
    timeout_seconds: float


class BodyReader:
    """Collects one body within its limits and the budget of all bodies; `close` gives its bytes back."""

    __slots__ = ("_budget", "_limits", "_num_bytes", "_pieces")

    def __init__(self, limits: BodyLimits, budget: BodyBudget) -> None:
        self._limits = limits
        self._budget = budget
        self._num_bytes = 0
        self._pieces: list[bytes] = []

    def require_length(self, headers: RequestHeaders) -> None:
        """Raise BodyTooLarge if the declared length is over the limit."""
        declared = headers.get(b"content-length")
        if declared is not None and int(declared) > self._limits.max_bytes:
            raise BodyTooLarge(int(declared), self._limits.max_bytes)

    def feed(self, piece: bytes) -> None:
        """Take the next piece.

        Raises:
            StreamTooLarge: more than the limit arrived.
            BuffersFull: too many bytes of other requests are in memory.
        """
        if self._num_bytes + len(piece) > self._limits.max_bytes:
            raise StreamTooLarge(self._limits.max_bytes)
        self._budget.take(len(piece))
        self._num_bytes += len(piece)
        self._pieces.append(piece)

    def images(self, headers: RequestHeaders) -> Images:
        """Return the images of the complete body; its bytes count until `close`. Raises as `split_body` does."""
        return split_body(self._join(), headers, self._limits.max_images)

    async def read(self, receive: Receive, headers: RequestHeaders) -> bytes:
        """Return the whole body of an ASGI request as it comes.

        Raises:
            BodyTooLarge, StreamTooLarge, BuffersFull: as the methods above.
            BodyTimeout: its end did not arrive in time.
            ClientDisconnect: the client left.
        """
        self.require_length(headers)
        try:
            async with asyncio.timeout(self._limits.timeout_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    if piece := message.get("body", b""):
                        self.feed(piece)
                    if not message.get("more_body", False):
                        return self._join()
        except TimeoutError as error:
            raise BodyTimeout(self._limits.timeout_seconds) from error

    def close(self) -> None:
        """Give back what the body took of the budget."""
        self._budget.give_back(self._num_bytes)
        self._num_bytes = 0
        self._pieces.clear()

    def _join(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def split_body(body: bytes, headers: RequestHeaders, max_images: int) -> Images:
    """Return the images of a body, in order; one that cannot even be taken out is an ItemError in its place.

    Raises:
        MediaTypeUnsupported: the content type is not one of MEDIA_TYPES, or the body is compressed.
        BodyInvalid: the body is not what its content type says, or holds no image.
        TooManyImages: it holds more than `max_images`.
    """
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        raise MediaTypeUnsupported(f"Content-Encoding {encoding.decode('latin-1').lower()!r}", "identity")
    given = headers.get(b"content-type", b"application/octet-stream")
    if given in PLAIN_TYPES:
        return [body]
    content_type = given.decode("latin-1")
    media_type, parameters = parse_options_header(content_type)
    match media_type:
        case b"multipart/form-data":
            images: Images = split_multipart(body, parameters.get(b"boundary", b""), max_images)
        case b"application/json":
            images = _split_json(body, max_images)
        case b"application/octet-stream":
            images = [body]
        case _ if media_type.startswith(b"image/"):
            images = [body]
        case _:
            raise MediaTypeUnsupported(f"Content-Type {content_type!r}", MEDIA_TYPES)
    if not images:
        raise BodyInvalid("it holds no image")
    if len(images) > max_images:
        raise TooManyImages(max_images)
    return images


def _split_json(body: bytes, max_images: int) -> list[bytes | ItemError]:
    # These characters never occur in base64, so counting them bounds the values before any is parsed. Millions of
    # values would cost the whole gateway seconds and gigabytes.
    if body.count(b"{") > max_images + 1:
        raise TooManyImages(max_images)
    if body.count(b",") + body.count(b"[") + body.count(b":") > 3 * max_images + 16:
        raise BodyInvalid("it has far more values than images are allowed")
    try:
        document = PredictJson.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(step) for step in first["loc"]) or "the document"
        raise BodyInvalid(f"{place}: {first['msg']}") from error
    return [_decode_base64(instance.b64) for instance in document.instances]


def _decode_base64(text: str) -> bytes | ItemError:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        return ItemError("base64_invalid", f"The value of b64 is not base64 (RFC 4648): {error}.")
