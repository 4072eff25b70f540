"""Handshakes of TLS, a few steps of them in each turn of the event loop.

A step, which is what a client sends at a time and the answer to it, takes up to a millisecond of the processor, because
the private key signs in it. A thousand clients can send theirs at the same moment, so steps wait, and addresses take
turns. A client that sends nothing costs a plain connection. The event loop's own servers take every step at once.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from service.http.server.turns import Turns

HANDSHAKE_SECONDS = 10.0  # to send the first bytes, and from there to the end of the handshake
MOST_STEPS = 8  # before others have their turn
BREATH_SECONDS = 0.004  # until the next ones


class Early(asyncio.Protocol):
    """Gathers what a client sends right behind its handshake."""

    def __init__(self) -> None:
        self.received = bytearray()

    def data_received(self, data: bytes) -> None:
        """Keep it."""
        self.received += data


class Steps(asyncio.Protocol):
    """The client's side of a handshake: takes what it sends, and waits for a turn to pass it on."""

    def __init__(self, take_turn: Callable[["Steps"], None]) -> None:
        self.is_due = asyncio.get_running_loop().create_future()  # the first step
        self._take_turn = take_turn
        self._transport: asyncio.Transport | None = None
        self._inner: Any = None  # a BufferedProtocol
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first step."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read no more until the turn of what was received."""
        assert self._transport is not None
        self._transport.pause_reading()
        self._received += data
        self._take_turn(self)

    def go_on(self) -> None:
        """Pass on what was received: it has its turn."""
        if self._inner is not None:
            self._pass_on()
        elif not self.is_due.done():
            self.is_due.set_result(None)

    def begin(self, inner: Any) -> None:
        """Take the first step with `inner`, which the event loop has made for it."""
        self._inner = inner
        self._pass_on()

    def end(self) -> None:
        """Leave the connection to the protocol of the event loop."""
        assert self._transport is not None
        if self._transport.is_closing():
            raise ConnectionAbortedError
        self._transport.pause_reading()
        self._transport.set_protocol(self._inner)
        self._pass_on()

    def eof_received(self) -> bool:
        """Pass it on."""
        return self._inner is not None and self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._inner.connection_lost(exc)
        elif not self.is_due.done():
            self.is_due.set_exception(ConnectionAbortedError())

    def pause_writing(self) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        if self._inner is not None:
            self._inner.resume_writing()

    def _pass_on(self) -> None:
        assert self._transport is not None
        left, self._received = memoryview(self._received), b""
        while left and not self._transport.is_closing():
            buffer = self._inner.get_buffer(len(left))
            num_bytes = min(len(left), len(buffer))
            buffer[:num_bytes] = left[:num_bytes]
            self._inner.buffer_updated(num_bytes)
            left = left[num_bytes:]
        if not self._transport.is_closing():
            self._transport.resume_reading()


class Handshakes:
    """Makes connections of TLS out of plain ones."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._waiting: Turns[Steps] = Turns()
        self._num_left = MOST_STEPS
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, plain: socket.socket, address: str, make: Callable[[], asyncio.Protocol]) -> None:
        """Shake hands on a socket that does not block; then connect it with the protocol that `make` returns.

        Raises:
            OSError: the handshake failed, the client left, or it took too long.
        """
        steps = Steps(lambda waiting: self._take_turn(waiting, address))
        transport, _ = await self._loop.connect_accepted_socket(lambda: steps, plain)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await steps.is_due
            encrypted, early = await self._encrypt(transport, steps)
        except BaseException:
            transport.abort()
            raise
        if not encrypted.is_closing():
            protocol = make()
            encrypted.set_protocol(protocol)
            protocol.connection_made(encrypted)
            if early:
                protocol.data_received(bytes(early))

    async def _encrypt(self, transport: asyncio.Transport, steps: Steps) -> tuple[asyncio.Transport, bytearray]:
        """Return the encrypted transport, and what was received on it so far."""
        early = Early()
        shaking = self._loop.create_task(
            self._loop.start_tls(transport, early, self._tls, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS)
        )
        try:
            await asyncio.sleep(0)  # it has set its protocol then, which reads nothing yet
            inner = cast("Any", transport.get_protocol())
            transport.set_protocol(steps)
            self._loop.call_soon(steps.begin, inner)
            encrypted = await shaking
        except BaseException:
            shaking.cancel()
            raise
        steps.end()
        return cast("asyncio.Transport", encrypted), early.received

    def _take_turn(self, steps: Steps, address: str) -> None:
        self._waiting.add(steps, address)
        self._go_on()

    def _refill(self) -> None:
        self._timer = None
        self._num_left = MOST_STEPS
        self._go_on()

    def _go_on(self) -> None:
        try:
            while self._num_left and self._waiting.num:
                self._num_left -= 1
                self._waiting.pop().go_on()
        finally:
            if self._timer is None and self._num_left < MOST_STEPS:
                self._timer = self._loop.call_later(BREATH_SECONDS, self._refill)
