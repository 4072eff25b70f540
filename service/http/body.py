"""A request's body: taken within bounds, then split into images.

POST /predict feeds its body piece by piece, and http/predict.py limits how long that may take. All other routes
read theirs with `BodyReader.read`.
"""

import asyncio
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from service.domain.backend import ItemError
from service.errors.overload import BuffersFull
from service.errors.request import (
    BodyInvalid,
    BodyTimeout,
    BodyTooLarge,
    MediaTypeUnsupported,
    StreamTooLarge,
    TooManyImages,
)
from service.http.images.header_parameters import read_parameters
from service.http.images.json_document import split_json
from service.http.images.multipart import split_multipart
from service.http.images.steps import Steps, at_once

# By far the most requests; these types need no parser.
PLAIN_TYPES = frozenset({b"image/png", b"image/jpeg", b"image/webp", b"application/octet-stream"})
AT_ONCE_BYTES = 256 * 1024  # up to here a form or a document is taken apart in one go
LONGEST_TOLD = 200  # of a header, in an error
RequestHeaders = Mapping[bytes, bytes]
Images = Sequence[bytes | ItemError]  # in the order of the body
MEDIA_TYPES = "image/*, application/octet-stream, multipart/form-data, application/json"


class BodyBudget:
    """The bytes of all bodies that are in memory, from their arrival until their requests are answered.

    A caller may hold as much as stays free: half of all if it is alone, a third beside one that holds a third. So
    whatever some hold, there is room for others (Choudhury and Hahne 1998, "Dynamic queue length thresholds").
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_free = max_bytes
        self._held: dict[object, int] = {}  # by caller; of those alone that hold any

    def take(self, num_bytes: int, caller: object) -> None:
        """Count bytes of a caller; raise BuffersFull if it would hold more than stays free."""
        held = self._held.get(caller, 0) + num_bytes
        if held > self._num_free - num_bytes:
            raise BuffersFull(self._max_bytes)
        self._held[caller] = held
        self._num_free -= num_bytes

    def give_back(self, num_bytes: int, caller: object) -> None:
        """Count them no more."""
        self._num_free += num_bytes
        if left := self._held.pop(caller, 0) - num_bytes:
            self._held[caller] = left


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What one request may hold, and how long it may take to arrive."""

    max_bytes: int
    max_images: int
    timeout_seconds: float


class BodyReader:
    """Collects one body within its limits and the budget of all bodies; `close` gives its bytes back."""

    __slots__ = ("_budget", "_first", "_limits", "_whole", "caller", "num_bytes")

    def __init__(self, limits: BodyLimits, budget: BodyBudget) -> None:
        self._limits = limits
        self._budget = budget
        self.num_bytes = 0
        self.caller: object = None  # in whose name it takes its bytes; set it before the first
        self._first = b""  # most bodies come in one piece
        # A body of more. It grows as they come and gives its bytes without a copy: to join 30 MB would stop the event
        # loop for 30 ms.
        self._whole: io.BytesIO | None = None

    def require_length(self, headers: RequestHeaders) -> None:
        """Raise BodyTooLarge if the declared length is over the limit."""
        declared = headers.get(b"content-length")
        if declared is not None and int(declared) > self._limits.max_bytes:
            raise BodyTooLarge(int(declared), self._limits.max_bytes)

    def feed(self, piece: bytes) -> None:
        """Take the next piece.

        Raises:
            StreamTooLarge: more than the limit arrived.
            BuffersFull: too many bytes are in memory, of all requests or of the caller's.
        """
        if self.num_bytes + len(piece) > self._limits.max_bytes:
            raise StreamTooLarge(self._limits.max_bytes)
        self._budget.take(len(piece), self.caller)
        self.num_bytes += len(piece)
        if self.num_bytes == len(piece):
            self._first = piece
            return
        if self._whole is None:
            self._whole = io.BytesIO()
            self._whole.write(self._first)
            self._first = b""
        self._whole.write(piece)

    def images(self, headers: RequestHeaders) -> Images | Steps[Images]:
        """Return the images of the complete body, or the steps to them; its bytes count until `close`.

        Raises as `split_body` does.
        """
        return split_body(self._take(), headers, self._limits.max_images)

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
                        return self._take()
        except TimeoutError as error:
            raise BodyTimeout(self._limits.timeout_seconds) from error

    def close(self) -> None:
        """Give back what the body took of the budget."""
        self._budget.give_back(self.num_bytes, self.caller)
        self.num_bytes = 0
        self._take()

    def _take(self) -> bytes:
        first, whole = self._first, self._whole
        self._first, self._whole = b"", None
        return first if whole is None else whole.getvalue()


def split_body(body: bytes, headers: RequestHeaders, max_images: int) -> Images | Steps[Images]:
    """Return the images of a body, in order; one that cannot even be taken out is an ItemError in its place.

    Of a large form or document return the steps that lead to them.

    Raises:
        MediaTypeUnsupported: the content type is not one of MEDIA_TYPES, or the body is compressed.
        BodyInvalid: the body is not what its content type says, or holds no image.
        TooManyImages: it holds more than `max_images`.
    """
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.lower() != b"identity":
        raise MediaTypeUnsupported(
            f"Content-Encoding {encoding[:LONGEST_TOLD].decode('latin-1').lower()!r}", "identity"
        )
    given = headers.get(b"content-type", b"application/octet-stream")
    if given in PLAIN_TYPES:
        return [body]
    steps = _split_in_steps(body, given, max_images)
    return steps if len(body) > AT_ONCE_BYTES else at_once(steps)


def _split_in_steps(body: bytes, given: bytes, max_images: int) -> Steps[Images]:
    media_type, parameters = read_parameters(given)
    match media_type:
        case b"multipart/form-data":
            images: Images = yield from split_multipart(body, parameters.get(b"boundary", b""), max_images)
        case b"application/json":
            images = yield from split_json(body, max_images)
        case b"application/octet-stream":
            images = [body]
        case _ if media_type.startswith(b"image/"):
            images = [body]
        case _:
            raise MediaTypeUnsupported(f"Content-Type {given[:LONGEST_TOLD].decode('latin-1')!r}", MEDIA_TYPES)
    if not images:
        raise BodyInvalid("it holds no image")
    if len(images) > max_images:
        raise TooManyImages(max_images)
    return images
