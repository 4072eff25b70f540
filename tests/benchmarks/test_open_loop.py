"""The open-loop generator against real servers: it keeps its schedule whatever they do."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.answers import LOST, parse_head, summarise
from benchmarks.load.endpoint import MARKER
from benchmarks.load.open_loop import arrivals
from tests.torchserve_process import ROOT

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    return await reader.readexactly(length)


def answer(status: int, extra: str = "") -> bytes:
    return f"HTTP/1.1 {status} Whatever\r\n{extra}Content-Length: 2\r\n\r\nok".encode()


async def generate(tmp_path: Path, port: int, times: list[float], bodies: list[bytes], **plan: Any) -> dict[str, Any]:
    files = [tmp_path / str(number) for number in range(len(bodies))]
    for file, body in zip(files, bodies, strict=True):
        file.write_bytes(body)
    document = {
        "port": port,
        "path": "/predict",
        "headers": {"Content-Type": "image/png"},
        "bodies": [str(file) for file in files],
        "times": times,
        "which": [number % len(bodies) for number in range(len(times))],
        "objective_ms": 1000,
        **plan,
    }
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "benchmarks.load.generator"]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=ROOT)
    output, _ = await asyncio.wait_for(process.communicate(json.dumps(document).encode()), 60)
    outcome: dict[str, Any] = json.loads(output)
    return outcome


def run(test: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(90):
            await test

    asyncio.run(bounded())


def test_statuses_are_kept_apart_and_bodies_arrive(tmp_path: Path) -> None:
    async def test() -> None:
        received: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                body = await read_request(reader)
                received.append(body)
                writer.write(answer(200 if body == b"good" else 429))

        async with serving(serve) as port:
            outcome = await generate(tmp_path, port, [number / 200 for number in range(60)], [b"good", b"bad"])
        assert outcome["sent"] == 60
        assert {status: each["count"] for status, each in outcome["statuses"].items()} == {"200": 30, "429": 30}
        assert sorted(received) == [b"bad"] * 30 + [b"good"] * 30

    run(test())


def test_every_request_carries_its_own_number(tmp_path: Path) -> None:
    async def test() -> None:
        received: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                received.append(await read_request(reader))
                writer.write(answer(200))

        async with serving(serve) as port:
            await generate(tmp_path, port, [number / 200 for number in range(20)], [f"({MARKER})".encode()])
        assert len(set(received)) == 20
        assert {len(body) for body in received} == {len(MARKER) + 2}

    run(test())


def test_a_stall_is_charged_to_everybody_who_came_meanwhile(tmp_path: Path) -> None:
    async def test() -> None:
        begun, release = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await read_request(reader)
                begun.set()
                await release.wait()
                writer.write(answer(200))

        async def let_go() -> None:
            await begun.wait()
            await asyncio.sleep(0.6)  # the stall itself
            release.set()

        async with serving(serve) as port:
            letting_go = asyncio.create_task(let_go())
            times = [number / 100 for number in range(40)]
            outcome = await generate(tmp_path, port, times, [b"x"], max_connections=2)
            await letting_go
        # Two connections: a closed loop would have seen two slow requests, and 38 fast ones.
        assert outcome["statuses"]["200"]["count"] == 40
        assert outcome["statuses"]["200"]["p50_ms"] > 100

    run(test())


def test_a_kept_connection_that_was_closed_meanwhile_is_no_error(tmp_path: Path) -> None:
    async def test() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(answer(200))
            await writer.drain()

        async with serving(serve) as port:
            outcome = await generate(tmp_path, port, [0.0, 0.3, 0.6], [b"x"])
        assert outcome["statuses"]["200"]["count"] == 3

    run(test())


def test_a_request_without_an_answer_is_lost(tmp_path: Path) -> None:
    async def test() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)

        async with serving(serve) as port:
            outcome = await generate(tmp_path, port, [0.0], [b"x"])
        assert set(outcome["statuses"]) == {str(LOST)}

    run(test())


def test_arrivals_have_the_rate_and_the_seed_decides_them() -> None:
    times = arrivals(rate=1000, seconds=20, seed=1)
    assert times == sorted(times)
    assert 19_000 < len(times) < 21_000
    assert times == arrivals(rate=1000, seconds=20, seed=1)
    assert times != arrivals(rate=1000, seconds=20, seed=2)


def test_heads() -> None:
    assert parse_head(b"HTTP/1.1 200 OK\r\nContent-Le") is None
    assert parse_head(answer(429)) == (429, len(answer(429)), False)
    assert parse_head(answer(503, "Connection: close\r\n")) == (503, len(answer(503, "Connection: close\r\n")), True)
    with pytest.raises(ValueError, match="Content-Length"):
        parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")


def test_only_what_meets_the_objective_counts_as_good() -> None:
    outcome = summarise([200, 200, 200, 429], [0.01, 0.3, 0.02, 0.001], objective_ms=100)
    good = outcome["statuses"]["200"]
    assert (good["count"], good["within_objective"], good["p50_ms"]) == (3, 2, 20)
    assert outcome["statuses"]["429"]["count"] == 1
