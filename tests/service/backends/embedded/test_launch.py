"""How a worker reads batches and writes answers: the same as TorchServe's own code, however they come."""

import contextlib
import socket
import threading
import warnings
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.backends.embedded.launch import PREDICT, READ_BYTES, Connection, pack_answer
from service.backends.embedded.wire import pack_load, pack_request

with warnings.catch_warnings(action="ignore"):  # it leaves a file open
    from ts.context import Context, RequestProcessor
    from ts.protocol.otf_message_handler import create_predict_response, retrieve_msg

NAMES = st.text(max_size=12)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=300)), max_size=40)
HEADERS = st.dictionaries(NAMES, NAMES, max_size=3)


@contextlib.contextmanager
def sent(pieces: Sequence[bytes]) -> Iterator[socket.socket]:
    """Yield a socket at which the pieces come, one by one, and then the end."""
    near, far = socket.socketpair()

    def send() -> None:
        with near:
            for piece in pieces:
                near.sendall(piece)

    thread = threading.Thread(target=send)
    thread.start()
    with far:
        yield far
    thread.join()


@given(st.lists(st.tuples(FIELDS, HEADERS), min_size=1, max_size=3), st.integers(1, 2000))
@settings(max_examples=100, deadline=None)
def test_batches_are_read_as_torchserve_reads_them(
    batches: list[tuple[list[tuple[str, bytes]], dict[str, str]]], piece_size: int
) -> None:
    whole = b"".join(
        b"".join(pack_request(number, fields, headers.items())) for number, (fields, headers) in enumerate(batches)
    )
    pieces = [whole[at : at + piece_size] for at in range(0, len(whole), piece_size)]
    with sent(pieces) as ours, sent(pieces) as theirs:
        connection = Connection(ours)
        for _ in batches:
            command, expected = retrieve_msg(theirs)
            assert connection.next_is(PREDICT)
            assert bytes(command) == PREDICT
            assert connection.requests() == expected


@pytest.mark.parametrize("num_bytes", [READ_BYTES - 1, READ_BYTES, 3 * READ_BYTES + 5])
def test_items_larger_than_the_buffer_are_whole(num_bytes: int) -> None:
    items = [(str(number), bytes([number]) * num_bytes) for number in range(3)]
    with sent(pack_request(7, items, {})) as end:
        connection = Connection(end)
        assert connection.next_is(PREDICT)
        (request,) = connection.requests()
        assert [(each["name"], each["value"]) for each in request["parameters"]] == items


def test_other_commands_are_left_to_torchserve() -> None:
    with sent([pack_load("model", "folder", "handler.py")]) as end:
        connection = Connection(end)
        assert not connection.next_is(PREDICT)
        command, request = retrieve_msg(connection)
        assert bytes(command) == b"L"
        assert bytes(request["modelName"]) == b"model"


def test_the_end_of_the_connection_in_a_batch_ends_the_process_in_peace() -> None:
    whole = b"".join(pack_request(1, [("0", b"image")], {}))
    for num_bytes in (0, 1, 7, len(whole) - 1):
        with sent([whole[:num_bytes]]) as end:
            connection = Connection(end)
            with pytest.raises(SystemExit) as caught:
                connection.next_is(PREDICT) and connection.requests()
            assert caught.value.code == 0


def context_with(headers: dict[str, str], status: int | None, reason: str | None) -> Context:
    """Return TorchServe's context of a batch with one request, as a handler leaves it."""
    context = Context("model", "folder", {}, 1, None, "1.0")
    processor = RequestProcessor({})
    processor.report_status(status, reason)
    for name, value in headers.items():
        processor.add_response_property(name, value)
    context.request_processor = [processor]
    return context


PLAIN = st.text(st.characters(max_codepoint=126), max_size=12)  # of other texts TorchServe counts letters for bytes


@given(
    st.binary(max_size=300),
    NAMES,
    st.dictionaries(st.sampled_from(["content-type", "x-name", "other"]), PLAIN),
    st.none() | st.integers(100, 599),
    st.none() | PLAIN,
)
@settings(max_examples=200, deadline=None)
def test_answers_are_written_as_torchserve_writes_them(
    answer: bytes, request: str, headers: dict[str, str], status: int | None, reason: str | None
) -> None:
    context = context_with(headers, status, reason)
    expected = create_predict_response([answer], {0: request}, "Prediction success", 200, context)
    assert pack_answer(answer, request, "Prediction success", 200, context) == expected


def test_answers_that_are_no_bytes_or_come_bit_by_bit_are_left_to_torchserve() -> None:
    plain = context_with({}, 200, None)
    assert pack_answer({"a": 1}, "1", "", 200, plain) is None
    assert pack_answer(bytearray(b"a"), "1", "", 200, plain) is None
    assert pack_answer(b"a", "1", "", 200, context_with({"ts_stream_next": "true"}, 200, None)) is None
    plain.stopping_criteria = [bool]
    assert pack_answer(b"a", "1", "", 200, plain) is None
