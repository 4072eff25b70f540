"""A model server is told of a batch's trace, whichever way the batch goes."""

import asyncio
import json
from collections.abc import Sequence

import grpc
import grpc.aio
import pytest

from service.backends.torchserve.grpc import PREDICTIONS, GrpcBackend
from service.backends.torchserve.inference_pb2 import PredictionResponse
from service.backends.torchserve.rest import RestBackend
from service.domain.backend import BatchOptions, Ranking, Target
from tests.service.backends.torchserve.test_http_client import read_request

pytestmark = pytest.mark.anyio

HEADERS = (("traceparent", f"00-{'1' * 32}-{'2' * 16}-01"), ("tracestate", "a=1,b=2"))
ANSWER = json.dumps({"results": [{"top_k": [[0, 1.0]]}], "timings_ms": {"decode": 1, "compute": 1}}).encode()
EXPECTED = [Ranking([(0, 1.0)])]
TARGET = Target("digits", "1.0")


async def predict(backend: GrpcBackend | RestBackend, headers: Sequence[tuple[str, str]]) -> None:
    answer = await backend.predict(TARGET, [b"image"], BatchOptions(1, headers=headers), 10)
    assert answer.results == EXPECTED


async def test_by_rest() -> None:
    heads: list[list[str]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await read_request(reader):
            heads.append(request.partition(b"\r\n\r\n")[0].decode().split("\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)
        writer.close()
        await writer.wait_closed()
        has_ended.set()

    has_ended = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    backend = RestBackend("127.0.0.1", server.sockets[0].getsockname()[1])
    await backend.start()
    try:
        await predict(backend, HEADERS)
        await predict(backend, ())
    finally:
        await backend.close()
        await asyncio.wait_for(has_ended.wait(), 10)
        server.close()
        await server.wait_closed()
    with_trace, without = heads
    assert {f"{name}: {value}" for name, value in HEADERS} <= set(with_trace)
    assert not [line for line in without if line.startswith("trace")]


async def test_by_grpc() -> None:
    told: list[dict[str, str | bytes]] = []

    async def serve(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        told.append({name: value for name, value in context.invocation_metadata() or () if name.startswith("trace")})
        return PredictionResponse(prediction=ANSWER).SerializeToString()

    service, _, method = PREDICTIONS.removeprefix("/").partition("/")
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(serve)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    backend = GrpcBackend(f"127.0.0.1:{port}")
    await backend.start()
    try:
        await predict(backend, HEADERS)
        await predict(backend, ())
    finally:
        await backend.close()
        await server.stop(1)
    assert told == [dict(HEADERS), {}]
