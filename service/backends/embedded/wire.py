"""The protocol of TorchServe's Python workers: big-endian int32, strings after their length, -1 ends a list."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

_INT = struct.Struct("!i")
_END = _INT.pack(-1)
_NO_TYPE = _INT.pack(0)
ON_CPU = -1

MAX_TEXT_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_DIGITS = 18  # of a batch's number; int() raises for thousands
# 1,024 items with 1,000 probabilities each are some 22 MB of JSON.
MAX_BODY_BYTES = 256 * 1024 * 1024


class WireError(Exception):
    """The received bytes are not a worker's answer."""


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """A worker's answer to one command; `request` is None for a load and the batch's number otherwise."""

    code: int
    message: str
    request: int | None = None
    status: int = 200
    body: bytes = b""


class _Incomplete(Exception):
    """The rest has not come yet."""


def pack_load(model: str, folder: str, handler: str) -> bytes:
    """Return the command to load the archive that lies in `folder`."""
    return b"".join(
        (
            b"L",
            _text(model),
            _text(folder),
            _INT.pack(1),  # one request carries a whole batch
            _text(handler),
            _INT.pack(ON_CPU),
            _text(""),  # no envelope
            b"\x01",  # Pillow's limit of pixels stays
        )
    )


def pack_request(
    number: int, fields: Iterable[tuple[str, bytes]], headers: Iterable[tuple[str, str]] = ()
) -> list[bytes]:
    """Return the command to answer one request, in pieces: a field's bytes are a piece as they are, not copied."""
    head = [b"I", _text(str(number)), *(_text(name) + _text(value) for name, value in headers), _END]
    pieces = [b"".join(head)]
    for name, value in fields:
        pieces += (_field_head(name) + _INT.pack(len(value)), value)
    pieces.append(_END + _END)  # of the fields, of the requests
    return pieces


@cache
def _field_head(name: str) -> bytes:
    return _text(name) + _NO_TYPE


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _INT.pack(len(encoded)) + encoded


def take_answer(received: bytearray) -> WorkerAnswer | None:
    """Take the first answer out of `received`; None while it is not whole, WireError if it is none or too large."""
    cursor = _Cursor(received)
    try:
        answer = _read_answer(cursor)
    except (struct.error, _Incomplete):
        return None
    except UnicodeDecodeError as error:
        raise WireError(f"a text is not UTF-8: {error}") from error
    del received[: cursor.at]
    return answer


def _read_answer(cursor: "_Cursor") -> WorkerAnswer:
    code, message = cursor.integer(), cursor.text()
    length = cursor.integer()
    if length == -1:
        return WorkerAnswer(code, message)
    name = cursor.take(_bounded(length, MAX_TEXT_BYTES))
    cursor.text()  # its content type
    status = cursor.integer()
    cursor.text()  # its reason phrase
    for _ in range(_bounded(cursor.integer(), MAX_HEADERS)):
        cursor.text()
        cursor.text()
    body = cursor.take(_bounded(cursor.integer(), MAX_BODY_BYTES))
    if cursor.integer() != -1:
        raise WireError("it answers more than was asked")
    if not name.isdigit() or len(name) > MAX_DIGITS:
        raise WireError(f"it answers {name[:100]!r}, which is no number of a request")
    return WorkerAnswer(code, message, int(name), status, body)


def _bounded(value: int, largest: int) -> int:
    if not 0 <= value <= largest:
        raise WireError(f"a length of {value}; 0 to {largest} are allowed")
    return value


class _Cursor:
    """Reads values from a buffer that may end too early; a length is checked before anything waits for its bytes."""

    __slots__ = ("_buffer", "at")

    def __init__(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self.at = 0

    def integer(self) -> int:
        value: int = _INT.unpack_from(self._buffer, self.at)[0]  # raises struct.error past the end
        self.at += _INT.size
        return value

    def take(self, num_bytes: int) -> bytes:
        end = self.at + num_bytes
        if end > len(self._buffer):
            raise _Incomplete
        part = bytes(memoryview(self._buffer)[self.at : end])
        self.at = end
        return part

    def text(self) -> str:
        return self.take(_bounded(self.integer(), MAX_TEXT_BYTES)).decode()
