"""What a connection has read and not parsed yet, and when it reads on.

A read may bring 256 kB: a body, or ten thousand heads. Parsed at once they would hold up everybody and take a hundred
times their size. So the parser gets pieces, and none while a request waits for an answer before it.
"""

import asyncio
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

PIECE_BYTES = 4 * 1024  # some 220 of the shortest heads
LONGEST_TURN_SECONDS = 0.002  # of parsing what one connection has sent, before others have their turn
HEAD_END = b"\r\n\r\n"


class Reader(Protocol):
    """The connection, as far as parsing concerns it."""

    flow: "ReadFlow"

    @property
    def takes_more(self) -> bool:
        """Whether it goes on parsing: no request waits, and none was refused."""

    @property
    def num_body_bytes_left(self) -> int | None:
        """How much of the body is still to come, 0 if its length was not declared; None between bodies."""

    def parse(self, piece: memoryview) -> None:
        """Parse a piece."""

    def begin(self) -> None:
        """Let the request begin whose turn it is, if any."""


class Intake:
    """Bytes that wait for the parser; false if there are none."""

    __slots__ = ("_data", "_is_scheduled", "_loop", "_start")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._data = b""
        self._start = 0
        self._is_scheduled = False

    def __bool__(self) -> bool:
        """Return whether any bytes wait."""
        return self._start < len(self._data)

    def add(self, data: bytes) -> None:
        """Take what was read."""
        self._data = self._data[self._start :] + data if self else data
        self._start = 0

    def clear(self) -> None:
        """Drop the bytes that are not parsed yet."""
        self._data, self._start = b"", 0

    def pass_on_soon(self, reader: Reader) -> None:
        """Go on in the event loop's next turn."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._go_on, reader)

    def pass_on(self, reader: Reader) -> None:
        """Have the bytes parsed until a request has to wait, or others should have their turn."""
        until = self._loop.time() + LONGEST_TURN_SECONDS
        while self and reader.takes_more:
            left = reader.num_body_bytes_left
            reader.parse(self._take_head() if left is None else self._take(max(left, PIECE_BYTES)))
            if self._loop.time() > until:
                self.pass_on_soon(reader)
                break
        if self:
            reader.flow.hold()
        elif reader.takes_more:
            reader.flow.release()
        reader.begin()

    def _go_on(self, reader: Reader) -> None:
        self._is_scheduled = False
        self.pass_on(reader)

    def _take_head(self) -> memoryview:
        """Return the next bytes up to the end of a head, so that most bodies come in one piece after it."""
        end = self._data.find(HEAD_END, self._start, self._start + PIECE_BYTES)
        return self._take(PIECE_BYTES if end < 0 else end + len(HEAD_END) - self._start)

    def _take(self, num_bytes: int) -> memoryview:
        piece = memoryview(self._data)[self._start : self._start + num_bytes]
        self._start += len(piece)
        return piece


class ReadFlow(FlowControl):
    """Pauses reading while uvicorn wants it to or the intake holds it; the two know nothing of each other."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self.is_held = False

    def hold(self) -> None:
        """Read nothing until `release`."""
        if not self.is_held:
            self.is_held = True
            if not self.read_paused:
                self._transport.pause_reading()

    def release(self) -> None:
        """Read again, unless reading is paused."""
        if self.is_held:
            self.is_held = False
            if not self.read_paused and not self._transport.is_closing():
                self._transport.resume_reading()

    def pause_reading(self) -> None:
        """Pause as uvicorn asks."""
        if not self.read_paused:
            self.read_paused = True
            if not self.is_held:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume as uvicorn asks, unless the intake holds."""
        if self.read_paused:
            self.read_paused = False
            if not self.is_held:
                self._transport.resume_reading()
