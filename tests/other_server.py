"""A server that is no gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any


@asynccontextmanager
async def other_server(head: str, body: bytes) -> AsyncIterator[Any]:
    """Answer everybody with this status line and body; yield what has the server's `url`, as a rig has."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
