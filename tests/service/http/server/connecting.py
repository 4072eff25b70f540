"""Connections from one of this machine's addresses."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator

from tests.gateway import Rig
from tests.service.http.server.test_protocol import answer_from
from tests.service.http.server.test_server import A_PROBE


class Client:
    """A connection from one of this machine's addresses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def asks(self, request: bytes = A_PROBE) -> None:
        """Ask, and see that the answer is 200."""
        self.writer.write(request)
        head, _ = await answer_from(self.reader)
        assert head.startswith(b"HTTP/1.1 200 ")

    async def is_ended(self) -> None:
        """See the end of the connection, without a word."""
        assert await self.reader.read() == b""

    async def is_refused(self, code: str) -> None:
        """See that the connection is refused."""
        head, body = await answer_from(self.reader)
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in head
        assert b"\r\nconnection: close\r\n" in head
        assert json.loads(body)["code"] == code
        assert await self.reader.read() == b""


class Clients:
    """Opens connections; closes them at the end."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._opened: list[asyncio.StreamWriter] = []

    async def open(self, address: str = "127.0.0.1", receive_bytes: int | None = None) -> Client:
        """Connect; an idle connection is in its place before the next one comes."""
        plain = socket.socket()
        if receive_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        plain.bind((address, 0))
        plain.setblocking(False)
        await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", self._rig.port))
        reader, writer = await asyncio.open_connection(sock=plain, limit=receive_bytes or 65536)
        self._opened.append(writer)
        return Client(reader, writer)

    def close(self) -> None:
        for writer in self._opened:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def clients_of(rig: Rig) -> AsyncIterator[Clients]:
    # The rig's own client has a connection, too, which must not count.
    clients = Clients(rig)
    try:
        async with asyncio.timeout(30):
            yield clients
    finally:
        clients.close()


async def ended(rig: Rig, reason: str) -> float:
    return await rig.metric("torchgate_connections_ended_total", reason=reason)


def flood_of(stack: contextlib.ExitStack, rig: Rig, number: int) -> list[socket.socket]:
    """Open connections from an address of their own while the event loop waits: it finds them all at once."""
    place = ("127.0.0.1", rig.port)
    return [
        stack.enter_context(socket.create_connection(place, source_address=("127.0.0.99", 0))) for _ in range(number)
    ]
