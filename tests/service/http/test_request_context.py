"""What a request leaves behind."""

import asyncio
import gc
from pathlib import Path

import pytest

from tests.gateway import running_gateway

pytestmark = pytest.mark.anyio

OURS = {
    *("RequestResponseCycle", "BoundedHttpProtocol", "DirectRequest", "RequestContext", "PredictHandler"),
    *("Prediction", "InferenceRequest", "Item", "BodyReader", "ExitStack"),
}


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 7\r\nConnection: close\r\n\r\nclass:1",
        b"POST /predict HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"7\r\nclass:1\r\n0\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 7\r\nExpect: 100-continue\r\n"
        b"Connection: close\r\n\r\nclass:1",
        b"POST /predict?top_k=0 HTTP/1.1\r\nHost: t\r\nContent-Length: 7\r\nConnection: close\r\n\r\nclass:1",
        b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
    ],
)
async def test_nothing_is_left_for_the_garbage_collector(tmp_path: Path, request_bytes: bytes) -> None:
    async with running_gateway(tmp_path) as rig:

        async def ask() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            writer.write(request_bytes)
            assert (await reader.read()).startswith(b"HTTP/1.1 ")
            writer.close()
            await writer.wait_closed()

        await ask()
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                await ask()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [type(each).__name__ for each in gc.garbage if type(each).__name__ in OURS]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert left == []
