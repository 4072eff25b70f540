"""A listener that does not read: it neither holds its place nor holds up the end."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from service.admin.status.broadcaster import BroadcastLimits, StatusBroadcaster, StatusSnapshot
from service.config.settings import Settings
from service.http.request_middleware import RequestMiddleware
from service.http.routes.status import EventStream
from service.http.server.clients import Clients
from service.http.server.connections import Connections
from service.http.server.protocol import BoundedHttpProtocol
from service.telemetry.access_log import AccessLog
from service.telemetry.log_stream import STANDARD_ERROR
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import NoTracing

pytestmark = pytest.mark.anyio


async def _look() -> StatusSnapshot:
    return StatusSnapshot(now=b"{}", detailed_now=b"{}", point=b'"' + b"x" * 1_000_000 + b'"')


@contextlib.asynccontextmanager
async def deaf_listener(longest_write_seconds: float) -> AsyncIterator[tuple[uvicorn.Server, asyncio.Task[None]]]:
    """Give a server, and its task, one of whose listeners has stopped reading."""
    feed = StatusBroadcaster(_look, BroadcastLimits(period_seconds=0.01))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await EventStream(feed, longest_write_seconds)(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        settings, metrics = Settings(), Metrics()
        connections = Connections(settings, metrics)
        log = AccessLog("error", 10_000, STANDARD_ERROR.write)
        edge = RequestMiddleware(app, {}, metrics, log, NoTracing(), Clients(settings), connections)
        config = uvicorn.Config(
            edge, http=BoundedHttpProtocol, ws="none", lifespan="off", log_config=None, proxy_headers=False
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([listener]))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, listener.getsockname())
        await asyncio.get_running_loop().sock_sendall(client, b"GET /status/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            async with asyncio.timeout(10):
                while not any(each.flow.write_paused for each in server.server_state.connections):  # type: ignore[union-attr]
                    await asyncio.sleep(0.01)
            yield server, serving
        finally:
            server.should_exit = True
            await asyncio.wait_for(serving, 20)


async def test_it_does_not_hold_up_the_end() -> None:
    async with deaf_listener(longest_write_seconds=60) as (server, serving):
        server.should_exit = True
        await asyncio.wait_for(serving, 5)


async def test_it_is_hung_up_on() -> None:
    async with deaf_listener(longest_write_seconds=0.2) as (server, _), asyncio.timeout(5):
        while server.server_state.connections:
            await asyncio.sleep(0.01)
