"""Both ends of a worker's socket: what a worker that sends rubbish does to the gateway, and the reverse."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from service.backends.embedded import launch
from service.backends.embedded.connection import Connection
from service.backends.embedded.wire import WireError, WorkerAnswer, pack_load, pack_request, take_answer
from tests.fuzz.cost import bounded, require_short
from tests.fuzz.front import cut
from tests.fuzz.profile import fuzzed

INT = struct.Struct("!i")
PLACES = st.lists(st.integers(0, 20_000), max_size=8)
TEXTS = st.text(max_size=20)


def sized(content: bytes) -> bytes:
    return INT.pack(len(content)) + content


def written(
    code: int, message: str, request: bytes, status: int, headers: Sequence[tuple[str, str]], body: bytes
) -> bytes:
    """Return an answer as TorchServe's worker writes it."""
    return b"".join(
        (
            *(INT.pack(code), sized(message.encode()), sized(request), sized(b"application/json")),
            *(INT.pack(status), sized(b"OK"), INT.pack(len(headers))),
            *(sized(text.encode()) for header in headers for text in header),
            *(sized(body), INT.pack(-1)),
        )
    )


NUMBERS = st.integers(0, 10**12)
ANSWERS = st.builds(
    lambda code, message, number, status, headers, body: (
        written(code, message, b"%d" % number, status, headers, body),
        WorkerAnswer(code, message, number, status, body),
    ),
    st.integers(-(2**31), 2**31 - 1),
    TEXTS,
    NUMBERS,
    st.integers(-(2**31), 2**31 - 1),
    st.lists(st.tuples(TEXTS, TEXTS), max_size=3),
    st.binary(max_size=200),
) | st.builds(
    lambda code, message: (INT.pack(code) + sized(message.encode()) + INT.pack(-1), WorkerAnswer(code, message)),
    st.integers(-(2**31), 2**31 - 1),
    TEXTS,
)
FRAGMENTS = st.sampled_from(
    [
        *(INT.pack(each) for each in (-1, 0, 1, 2, 7, 200, 65_536, 65_537, 2**31 - 1, -(2**31), 256 * 1024 * 1024)),
        *(sized(each) for each in (b"", b"1", b"OK", b"-1", b"x", b"\xff", "²".encode(), b"1" * 5000)),
        *(b"", b"L", b"I", written(200, "m", b"1", 200, [], b"{}")),
        written(200, "m", b"9" * 4301, 200, [], b"{}"),
    ]
)
RUBBISH = st.lists(FRAGMENTS | st.binary(max_size=12), max_size=12).map(b"".join)


def with_a_part_replaced(data: bytes) -> st.SearchStrategy[bytes]:
    """Return strategies of the data with a few other bytes in it: they go deeper than rubbish does."""
    return st.builds(
        lambda place, part: data[:place] + part + data[place + len(part) :],
        st.integers(0, len(data)),
        st.binary(min_size=1, max_size=4) | FRAGMENTS,
    )


SPOILT = ANSWERS.flatmap(lambda answer: with_a_part_replaced(answer[0]))


@fuzzed(80)
@given(answers=st.lists(ANSWERS, max_size=5), rest=st.binary(max_size=8), places=PLACES)
def test_answers_are_read_as_they_were_written(
    answers: list[tuple[bytes, WorkerAnswer]], rest: bytes, places: list[int]
) -> None:
    received, read = bytearray(), []
    for piece in cut(b"".join(each for each, _ in answers), places):
        received += piece
        while (answer := take_answer(received)) is not None:
            read.append(answer)
    assert read == [answer for _, answer in answers]
    assert not received


# A batch's number of 4,301 digits, which int() refuses: a ValueError that nobody expected.
@fuzzed(150)
@example(data=written(200, "m", b"9" * 4301, 200, [], b"{}"))
@given(data=RUBBISH | SPOILT)
def test_rubbish_is_an_error_of_the_protocol_or_waits_for_more(data: bytes) -> None:
    received = bytearray(data)
    with bounded(len(data)):
        try:
            while take_answer(received) is not None:
                pass
        except WireError as error:
            require_short(error, 500)


@fuzzed(40)
@example(data=written(200, "m", b"9" * 4301, 200, [], b"{}"), places=[])
@given(data=RUBBISH | SPOILT, places=PLACES)
def test_a_worker_that_sends_rubbish_is_done_with_once(data: bytes, places: list[int]) -> None:
    faults: list[dict[str, Any]] = []
    ends: list[str] = []

    async def receive() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        ours, theirs = socket.socketpair()
        connection = Connection(ours, lambda _: None, ends.append)
        connection.start()
        with theirs:
            for piece in cut(data, places):
                if connection.is_open:
                    theirs.sendall(piece)
                    await asyncio.sleep(0)
        connection.read_now()
        assert not connection.is_open
        connection.close()

    asyncio.run(receive())
    assert not faults
    assert len(ends) == 1


# The other end: the gateway's commands, as the worker's program reads them.

FIELDS = st.lists(st.tuples(TEXTS, st.binary(max_size=100)), max_size=4)


class Sent:
    """A socket that gives what was sent, cut anywhere, then ends."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._rest = list(pieces)

    def recv(self, num_bytes: int) -> bytes:
        piece = self._rest.pop(0) if self._rest else b""
        if len(piece) > num_bytes:
            self._rest.insert(0, piece[num_bytes:])
        return piece[:num_bytes]

    def sendall(self, data: bytes) -> None:
        raise AssertionError("nothing is said")


def reader(data: bytes, places: list[int]) -> launch.Connection:
    return launch.Connection(Sent([piece for piece in cut(data, places) if piece]))  # type: ignore[arg-type]


@fuzzed(60)
@given(number=NUMBERS, fields=FIELDS, headers=st.lists(st.tuples(TEXTS, TEXTS), max_size=3), places=PLACES)
def test_commands_are_read_as_they_were_written(
    number: int, fields: list[tuple[str, bytes]], headers: list[tuple[str, str]], places: list[int]
) -> None:
    worker = reader(b"".join(pack_request(number, fields, headers)), places)
    assert worker.next_is(launch.PREDICT)
    (request,) = worker.requests()
    assert request["requestId"] == b"%d" % number
    assert [(each["name"].decode(), each["value"].decode()) for each in request["headers"]] == headers
    assert [(each["name"], each["value"]) for each in request["parameters"]] == fields
    with pytest.raises(SystemExit):  # the gateway has gone
        worker.next_is(launch.PREDICT)


COMMANDS = st.builds(lambda number, fields: b"".join(pack_request(number, fields)), NUMBERS, FIELDS)


# A negative length took the reader back in its buffer, to read the same length again, for ever.
@fuzzed(120)
@example(data=b"I" + INT.pack(-4), places=[])
@example(data=b"I" + INT.pack(-8) + b"12345678", places=[])
@given(data=RUBBISH | COMMANDS.flatmap(with_a_part_replaced), places=PLACES)
def test_a_gateway_that_sends_rubbish_ends_a_worker(data: bytes, places: list[int]) -> None:
    """A worker may fail, since nobody but its gateway writes to it. It reads no byte twice."""
    with bounded(len(data)):
        worker = reader(data, places)
        with contextlib.suppress(SystemExit, ValueError):
            while worker.next_is(launch.PREDICT):
                worker.requests()


@fuzzed(50)
@given(model=TEXTS, folder=TEXTS, handler=TEXTS)
def test_a_load_is_read_as_it_was_written(model: str, folder: str, handler: str) -> None:
    data = pack_load(model, folder, handler)
    assert data[:1] == b"L"
    rest, read = data[1:], []
    for is_number in (False, False, True, False, True, False):
        (number,) = INT.unpack(rest[: INT.size])
        rest = rest[INT.size :]
        if not is_number:
            read.append(rest[:number].decode())
            rest = rest[number:]
    assert read == [model, folder, handler, ""]
    assert rest == b"\x01"
