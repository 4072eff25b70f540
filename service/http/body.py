"""A request's body: read within bounds, then taken apart into images."""

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

# What needs no parser: by far the most requests.
PLAIN_TYPES = frozenset({b"image/png", b"image/jpeg", b"image/webp", b"application/octet-stream"})
RequestHeaders = Mapping[bytes, bytes]
MEDIA_TYPES = "image/*, application/octet-stream, multipart/form-data, application/json"


class BodyBudget:
    """The bytes of all bodies that are in memory, from their arrival until their requests are answered."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Count so many bytes more; BuffersFull if they are too many."""
        if self._num_bytes + num_bytes > self._max_bytes:
            raise BuffersFull(self._max_bytes)
        self._num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Count so many bytes less."""
        self._num_bytes -= num_bytes


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What one request may hold, and how long it may take to arrive."""

    max_bytes: int
    max_images: int
    timeout_seconds: float


class BodyReader:
    """Reads one body within its limits and within the budget of all; its bytes are given back by `close`."""

    __slots__ = ("_budget", "_limits", "_num_bytes")

    def __init__(self, limits: BodyLimits, budget: BodyBudget) -> None:
        self._limits = limits
        self._budget = budget
        self._num_bytes = 0

    def take(self, body: bytes) -> None:
        """Count a body that is there already; raises as `read` does."""
        if len(body) > self._limits.max_bytes:
            raise BodyTooLarge(len(body), self._limits.max_bytes)
        self._count(body)

    async def read(self, receive: Receive, headers: RequestHeaders) -> bytes:
        """Return the whole body as it comes.

        Raises:
            BodyTooLarge: its declared length is over the limit; nothing of it was read.
            StreamTooLarge: more than the limit arrived.
            BodyTimeout: its end did not arrive in time.
            BuffersFull: too many bytes of other requests are in memory.
            ClientDisconnect: the client left.
        """
        declared = headers.get(b"content-length")
        if declared is not None and int(declared) > self._limits.max_bytes:
            raise BodyTooLarge(int(declared), self._limits.max_bytes)
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(self._limits.timeout_seconds):
                await self._gather(receive, chunks)
        except TimeoutError as error:
            raise BodyTimeout(self._limits.timeout_seconds) from error
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self) -> None:
        """Give back what the body took of the budget."""
        self._budget.give_back(self._num_bytes)
        self._num_bytes = 0

    async def _gather(self, receive: Receive, chunks: list[bytes]) -> None:
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect  # noqa: TRY301
                if chunk := message.get("body", b""):
                    self._count(chunk)
                    chunks.append(chunk)
                if not message.get("more_body", False):
                    return
        except BaseException:
            chunks.clear()  # the exception's traceback keeps this list alive, maybe for long
            raise

    def _count(self, chunk: bytes) -> None:
        if self._num_bytes + len(chunk) > self._limits.max_bytes:
            raise StreamTooLarge(self._limits.max_bytes)
        self._budget.take(len(chunk))
        self._num_bytes += len(chunk)


def split_body(body: bytes, headers: RequestHeaders, max_images: int) -> Sequence[bytes | ItemError]:
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
            images: Sequence[bytes | ItemError] = split_multipart(body, parameters.get(b"boundary", b""), max_images)
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
    # Base64 has none of these characters, so that they count the values; parsing millions of them would take the
    # whole gateway seconds and gigabytes.
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
