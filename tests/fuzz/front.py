"""A gateway's connections without sockets: each piece of a request arrives where the test cuts it."""

import asyncio
import contextlib
import itertools
import json
import logging
import re
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import h11

from service.domain.backend import BatchAnswer, BatchOptions, Target
from service.http.server.protocol import BoundedHttpProtocol
from service.process.listening import PUBLIC
from tests.fake_backend import FakeBackend, FakeControl
from tests.gateway import Rig, running_gateway

T = TypeVar("T")
IMAGE = re.compile(rb"class:[0-3]")
STALL_SECONDS = 10.0
QUIET_TURNS = 20  # of the event loop, in which nothing more is said
OWN_FIELDS = ("id", "request_id")  # of an answer, different each time


class Wire(asyncio.Transport):
    """The transport of one connection, in memory."""

    def __init__(self, protocol: BoundedHttpProtocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000), "sockname": ("127.0.0.1", 8000)})
        self.protocol: asyncio.BaseProtocol = protocol
        self.said = bytearray()
        self.has_ended = False  # nothing more will be said
        self.is_paused = False
        self._is_closing = False
        self._unread = bytearray()
        protocol.connection_made(self)

    def arrive(self, data: bytes) -> None:
        """Have data come in, as soon as the connection reads."""
        self._unread += data
        self._deliver()

    def _deliver(self) -> None:
        if self._unread and not self.is_paused and not self._is_closing:
            data, self._unread = bytes(self._unread), bytearray()
            assert isinstance(self.protocol, asyncio.Protocol)
            self.protocol.data_received(data)

    @property
    def has_unread(self) -> bool:
        return bool(self._unread)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.has_ended, f"{bytes(data)!r} is said after the end"
        self.said += data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
        asyncio.get_running_loop().call_soon(self._deliver)

    def is_reading(self) -> bool:
        return not self.is_paused

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self.has_ended = True
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


@dataclass(frozen=True)
class Answer:
    """One answer as h11 reads it."""

    status: int
    media_type: bytes
    body: Any  # the document without its own fields, or bytes
    says_close: bool = field(compare=False)


@dataclass(frozen=True)
class Said:
    """All that came back on one connection."""

    answers: list[Answer]
    num_continues: int
    has_ended: bool  # the gateway closed it


@dataclass
class Front:
    """A gateway over the fake backend, and the loop that it runs in."""

    loop: asyncio.AbstractEventLoop
    rig: Rig
    faults: list[str]  # what was logged as an error, or raised where nobody catches

    def run(self, task: Coroutine[Any, Any, T]) -> T:
        """Run the loop until the task is done; fail if anything was logged as an error meanwhile."""
        self.faults.clear()
        result = self.loop.run_until_complete(task)
        assert not self.faults, self.faults
        return result

    def ask(self, pieces: Sequence[bytes], *, waits: bool = False) -> Said:
        """Send the pieces on a connection of their own, one in each turn of the loop or, if it `waits`, when it may."""
        return self.run(self._ask(pieces, waits))

    async def _ask(self, pieces: Sequence[bytes], waits: bool) -> Said:
        protocol = self.rig.server._protocol_of(PUBLIC)()
        assert isinstance(protocol, BoundedHttpProtocol)
        wire = Wire(protocol)
        try:
            for piece in pieces:
                wire.arrive(piece)
                await (self._settled(wire, protocol) if waits else asyncio.sleep(0))
            await self._settled(wire, protocol)
            return read_answers(bytes(wire.said), wire.has_ended)
        finally:
            wire.close()
            await asyncio.sleep(0)

    async def _settled(self, wire: Wire, protocol: BoundedHttpProtocol) -> None:
        """Return once the connection has ended, or has answered all that came whole and reads on."""
        num_quiet, num_bytes = 0, -1
        try:
            async with asyncio.timeout(STALL_SECONDS):
                while num_quiet < QUIET_TURNS and not wire.has_ended:
                    is_quiet = len(wire.said) == num_bytes and not _is_due(wire, protocol)
                    num_quiet, num_bytes = num_quiet + 1 if is_quiet else 0, len(wire.said)
                    await asyncio.sleep(0)
        except TimeoutError:
            raise AssertionError(f"the connection stands still; it has said {bytes(wire.said[-200:])!r}") from None


def _is_due(wire: Wire, protocol: BoundedHttpProtocol) -> bool:
    """Return whether something of the connection has to happen yet, whatever the client does."""
    if wire.is_paused or wire.has_unread or protocol._intake or protocol.pipeline:
        return True
    is_answered = protocol.cycle is None or protocol.cycle.response_complete
    is_body_due = not protocol._awaits_head and not protocol._is_between_messages
    return not is_answered and not is_body_due


def read_answers(said: bytes, has_ended: bool) -> Said:
    """Return the answers, to requests other than HEAD; fails unless they are well-formed and whole."""
    client = h11.Connection(h11.CLIENT)
    client.receive_data(said)
    if has_ended:
        client.receive_data(b"")
    answers, num_continues = [], 0
    while client.trailing_data[0]:
        client.send(h11.Request(method="GET", target="/", headers=[("Host", "t")]))
        client.send(h11.EndOfMessage())
        response, body = None, b""
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            assert event is not h11.NEED_DATA, f"an answer is not whole: {said[-200:]!r}"
            assert not isinstance(event, h11.ConnectionClosed), f"an answer is missing: {said[-200:]!r}"
            if isinstance(event, h11.InformationalResponse):
                num_continues += 1
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += event.data
        assert response is not None
        headers = dict(response.headers)
        is_last = headers.get(b"connection") == b"close"
        answers.append(Answer(response.status_code, headers.get(b"content-type", b""), _document(body), is_last))
        if is_last:
            assert client.trailing_data[0] == b"", "something is said after the last answer"
            break
        client.start_next_cycle()
    return Said(answers, num_continues, has_ended)


def _document(body: bytes) -> Any:
    try:
        document = json.loads(body)
    except ValueError:
        return body
    if isinstance(document, dict):
        return {key: value for key, value in document.items() if key not in OWN_FIELDS}
    return document


class _Faults(logging.Handler):
    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        self._faults.append(f"{record.name}: {record.getMessage()} {record.exc_info}")


def _take_any_image(backend: FakeBackend, _: FakeControl) -> None:
    """Have the fake refuse what is no image of its own, as a handler does."""
    predict = backend.predict

    async def take(
        target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        known = [found[0] if (found := IMAGE.match(item)) else b"reject:image_invalid" for item in items]
        return await predict(target, known, options, timeout_seconds)

    backend.predict = take  # type: ignore[method-assign]


@contextlib.contextmanager
def opened_front(tmp_path: Path, **options: Any) -> Iterator[Front]:
    """Run a gateway for as many examples as a test has."""
    faults: list[str] = []
    handler = _Faults(faults)

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        faults.append(repr(context))

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(note)
        stack = contextlib.AsyncExitStack()
        rig = runner.run(stack.enter_async_context(running_gateway(tmp_path, prepare=_take_any_image, **options)))
        logging.getLogger().addHandler(handler)
        try:
            yield Front(loop, rig, faults)
        finally:
            logging.getLogger().removeHandler(handler)
            runner.run(stack.aclose())


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Return the pieces of data cut at these places, each taken modulo its length."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]
