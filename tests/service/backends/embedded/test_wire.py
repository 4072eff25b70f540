"""The worker protocol, against TorchServe's own reader and writer where it has them."""

import socket
import struct
import threading
import warnings

import pytest

from service.backends.embedded import wire

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it does not close a file
    from ts.protocol import otf_message_handler as theirs


def read_by_torchserve(command: bytes) -> tuple[bytes, object]:
    """Return what TorchServe's worker makes of a command; it must have read all of it."""
    ours, worker = socket.socketpair()
    with ours, worker:
        sender = threading.Thread(target=ours.sendall, args=(command,))
        sender.start()
        read: tuple[bytes, object] = theirs.retrieve_msg(worker)
        sender.join()
        worker.setblocking(False)
        with pytest.raises(BlockingIOError):
            worker.recv(1)
    return read


def test_torchserve_reads_a_load() -> None:
    name, message = read_by_torchserve(wire.pack_load("digits", "/some/where", "handler.py"))
    assert name == b"L"
    assert message == {
        "modelName": b"digits",
        "modelPath": b"/some/where",
        "batchSize": 1,
        "handler": b"handler.py",
        "envelope": b"",
        "limitMaxImagePixels": True,
    }


def test_torchserve_reads_a_request_and_no_item_is_copied() -> None:
    items = [b"first", b"", bytes(300_000)]
    pieces = wire.pack_request(17, [(str(i), item) for i, item in enumerate(items)], (("describe", "True"),))
    assert all(any(piece is item for piece in pieces) for item in items)
    name, message = read_by_torchserve(b"".join(pieces))
    assert name == b"I"
    assert message == [
        {
            "requestId": b"17",
            "headers": [{"name": b"describe", "value": b"True"}],
            "parameters": [{"name": str(i), "contentType": "", "value": item} for i, item in enumerate(items)],
        }
    ]


def answer(request: str = "17", body: bytes = b"body", code: int = 200) -> bytes:
    made = theirs.create_predict_response([body], {0: request}, "Prediction success", code)
    return bytes(made)


def test_answers_are_taken_one_by_one_however_they_arrive() -> None:
    stream = bytes(theirs.create_load_model_response(200, "loaded")) + answer() + answer("18", b"x" * 1000)
    received = bytearray()
    taken = []
    for byte in stream:
        received.append(byte)
        while (each := wire.take_answer(received)) is not None:
            taken.append(each)
    assert taken == [
        wire.WorkerAnswer(200, "loaded"),
        wire.WorkerAnswer(200, "Prediction success", 17, 200, b"body"),
        wire.WorkerAnswer(200, "Prediction success", 18, 200, b"x" * 1000),
    ]
    assert not received


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack("!ii", 200, -5),  # a negative length
        struct.pack("!ii", 200, 2**30),  # one that would be waited for until memory is full
        answer("a name"),
        answer()[:-4] + struct.pack("!i", 3),  # a second request's answer
        struct.pack("!ii", 200, 1) + b"\xff" + struct.pack("!i", -1),
    ],
)
def test_what_is_no_answer_is_an_error(stream: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.take_answer(bytearray(stream))
