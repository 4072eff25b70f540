"""What a request leaves behind: nothing that keeps its body until the garbage collector comes."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.gateway import running_gateway

pytestmark = pytest.mark.anyio

OURS = {
    *("RequestResponseCycle", "BoundedHttpProtocol", "DirectRequest", "RequestContext", "PredictHandler"),
    *("Prediction", "InferenceRequest", "Item", "BodyReader", "ExitStack", "Batch", "BatchAnswer", "Taken"),
}


def predict(body: bytes, *lines: bytes, query: bytes = b"") -> bytes:
    length = b"Content-Length: %d" % len(body)
    head = (b"POST /predict%b HTTP/1.1" % query, b"Host: t", *lines, length, b"Connection: close", b"", body)
    return b"\r\n".join(head)


@contextmanager
def nothing_left(of: bytes) -> Iterator[None]:
    """See that what the block does leaves nothing of ours."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [type(each).__name__ for each in gc.garbage if type(each).__name__ in OURS]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == [], of


REQUESTS = [
    predict(b"class:1"),
    b"POST /predict HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    b"7\r\nclass:1\r\n0\r\n\r\n",
    predict(b"class:1", b"Expect: 100-continue"),
    predict(b"class:1", query=b"?top_k=0"),
    predict(b"class:1", query=b"?model=nowhere"),
    predict(b"class:1", b"Content-Type: image/png", b"Content-Encoding: gzip"),
    predict(b"reject:image_empty"),
    predict(b"unknown:9"),
    predict(b"poison"),
    predict(b"--b\r\nno part", b"Content-Type: multipart/form-data; boundary=b"),
    predict(b'{"instances": [', b"Content-Type: application/json"),
    predict(b'{"instances": [{"b64": "?"}]}', b"Content-Type: application/json"),
    predict(b'{"instances": [{"b64": "Y2xhc3M6MQ=="}, {"b64": "?"}]}', b"Content-Type: application/json"),
    predict(b"class:1", b"Transfer-Encoding: chunked"),
    b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n",
    b"POST /feedback HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nConnection: close\r\n\r\n{",
    b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
]


async def test_nothing_is_left_for_the_garbage_collector(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:

        async def ask(request: bytes) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            writer.write(request)
            assert (await reader.read()).startswith(b"HTTP/1.1 ")
            writer.close()
            await writer.wait_closed()

        for request in REQUESTS:
            await ask(request)  # what is made once is made now
            with nothing_left(request):
                await ask(request)


async def test_neither_does_a_client_that_leaves(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        slot = await rig.fill_the_slot()
        with nothing_left(b"a client that leaves"):
            _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            writer.write(predict(b"class:1"))
            await rig.until_queued(1)
            writer.close()
            await writer.wait_closed()
            await rig.until("torchgate_inference_duration_seconds_count", 1, outcome="cancelled")
            rig.backend.release()
            await slot
            del slot
