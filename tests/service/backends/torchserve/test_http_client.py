"""The client over real sockets, with servers that misbehave in every way that it promises to survive."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from service.backends.torchserve import http_client
from service.backends.torchserve.http_client import ConnectionEndedError, HttpClient

pytestmark = pytest.mark.anyio

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The gateway runs on uvloop, whose transports differ in detail."""
    return "asyncio", {"use_uvloop": request.param}


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Return head and body of one request; b"" at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


@asynccontextmanager
async def served(*scripts: Script) -> AsyncIterator[tuple[HttpClient, list[int]]]:
    """Run each script for one connection, in order; yield a client and the numbers of connections that came."""
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(len(connections))
        try:
            await scripts[connections[-1]](reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = HttpClient("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield client, connections
    finally:
        await client.close()
        server.close()
        await server.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while request := await read_request(reader):
        body = request.partition(b"\r\n\r\n")[2]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(ANSWER)
    await writer.drain()


async def once_and_says_so(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    await writer.drain()


async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    for piece in (b"HTTP/1.1 503 Busy\r\nTransfer-", b"Encoding: chunked\r\n\r\n2\r\nno", b"\r\n3\r\npe!\r\n0\r\n\r\n"):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    await read_request(reader)


async def breaks_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(ANSWER[:-1])
    await writer.drain()


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)


async def talks_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(b"220 mail.example ESMTP\r\n")
    await read_request(reader)


async def never_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await read_request(reader):
        pass


async def ask(client: HttpClient, *pieces: bytes) -> tuple[int, bytes]:
    return await client.post("/echo", "text/plain", pieces or (b"ok",))


async def test_requests_share_a_connection_one_after_the_other() -> None:
    async with served(echo, echo) as (client, connections):
        for body in (b"", b"one", b"x" * 3_000_000):
            assert await ask(client, body[:1], body[1:]) == (200, body)
        assert connections == [0]
        answers = list(await asyncio.gather(ask(client, b"a"), ask(client, b"b")))
        assert answers == [(200, b"a"), (200, b"b")]
        assert connections == [0, 1]


async def test_answers_in_chunks() -> None:
    async with served(chunked) as (client, _):
        assert await ask(client) == (503, b"nope!")


@pytest.mark.parametrize("first", [once, once_and_says_so])
async def test_a_connection_that_was_closed_in_the_meantime_is_replaced(first: Script) -> None:
    async with served(first, echo) as (client, connections):
        assert await ask(client) == await ask(client) == (200, b"ok")
        assert connections == [0, 1]


@pytest.mark.parametrize("script", [breaks_off, hangs_up, talks_nonsense])
async def test_what_breaks_off_is_told_and_leaves_nothing(script: Script) -> None:
    async with served(script, echo) as (client, connections):
        with pytest.raises(ConnectionEndedError):
            await ask(client)
        assert await ask(client) == (200, b"ok")
        assert connections == [0, 1]


async def test_who_gives_up_waiting_gets_nobody_elses_answer() -> None:
    async with served(never_answers, echo) as (client, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ask(client, b"first")
        assert await ask(client, b"second") == (200, b"second")


async def test_nobody_listens() -> None:
    async with served() as (client, _):
        pass
    with pytest.raises(OSError, match="Connect"):
        await ask(client)


async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(ANSWER + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nst")
        await writer.drain()
        if await read_request(reader):
            writer.write(b"ale")

    async with served(answer_twice, echo) as (client, connections):
        assert await client.post("/", "text/plain", [b"1"]) == (200, b"ok")
        assert await client.post("/", "text/plain", [b"2"]) == (200, b"2")
    assert len(connections) == 2
    assert not caplog.records


async def test_an_answer_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MOST_BYTES", 100_000)

    async def never_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with suppress(OSError):
            while True:
                writer.write(b"x" * 10_000)
                await writer.drain()

    async with served(never_end) as (client, _):
        with pytest.raises(ConnectionEndedError, match="more than 100000 bytes"):
            await client.post("/", "text/plain", [b"1"])
