"""A connection that sends much at once: what is parsed of it while others wait, and that nothing is lost."""

import asyncio
from pathlib import Path

import pytest

from service.http.server.protocol import BoundedHttpProtocol
from tests.gateway import Rig, running_gateway
from tests.service.http.server.test_protocol import answer_from, answer_to

pytestmark = pytest.mark.anyio

SHORTEST = b"GET / HTTP/1.1\r\nHost:t\r\n\r\n"
HEAD = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
MOST_WAITING = 256


def connection_of(rig: Rig) -> BoundedHttpProtocol:
    """Return the connection that has requests in its pipeline, or the only one."""
    found = [each for each in rig.server.server_state.connections if isinstance(each, BoundedHttpProtocol)]
    return max(found, key=lambda each: len(each.pipeline))


@pytest.mark.parametrize("first", [HEAD % 7 + b"class:1", b"GET /status/events HTTP/1.1\r\nHost: t\r\n\r\n"])
async def test_few_requests_of_a_connection_wait(tmp_path: Path, first: bytes) -> None:
    num_requests = 20_000
    async with running_gateway(tmp_path) as rig:
        rig.backend.hold()
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(first)
        if first.startswith(b"POST"):
            await rig.backend.batches_arrived(1)
        else:
            await reader.readuntil(b"retry: 1000")
        writer.write(SHORTEST * num_requests)
        async with asyncio.timeout(10):
            while not connection_of(rig).flow.is_held:
                await asyncio.sleep(0.01)
        for _ in range(20):
            assert len(connection_of(rig).pipeline) <= MOST_WAITING
            await asyncio.sleep(0.01)
        if first.startswith(b"POST"):  # now all of them are answered, and still few wait
            rig.backend.release()
            num_answered, tail = 0, b""
            async with asyncio.timeout(60):
                while num_answered < num_requests + 1:
                    data = await reader.read(2**20)
                    assert data
                    num_answered += (tail + data).count(b"HTTP/1.1 ")
                    tail = (tail + data)[-8:]
                    assert len(connection_of(rig).pipeline) <= MOST_WAITING
        writer.close()


async def test_bodies_and_heads_of_all_sizes_in_one_stream(tmp_path: Path) -> None:
    sizes = [7, 4000, 4096, 5000, 70_000, 300_000, 8, 1_000_000, 9, 10]
    bodies = [b"class:1".ljust(size) for size in sizes]
    async with running_gateway(tmp_path) as rig:
        stream = b"".join(HEAD % len(body) + body for body in bodies)
        said = await answer_to(rig.port, stream + LAST)
        assert said.count(b"HTTP/1.1 200 ") == len(sizes) + 1
        assert [image for batch in rig.backend.batches for image in batch] == bodies


async def test_a_body_in_tiny_chunks_is_read_whole(tmp_path: Path) -> None:
    body = b"class:1".ljust(100_000)
    chunks = b"".join(b"2\r\n%b\r\n" % body[start : start + 2] for start in range(0, len(body), 2))
    async with running_gateway(tmp_path) as rig:
        head = b"POST /predict HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        said = await answer_to(rig.port, head + chunks + b"0\r\n\r\n" + LAST)
        assert said.count(b"HTTP/1.1 200 ") == 2
        assert rig.backend.batches == [[body]]


async def test_a_body_that_waits_behind_a_slow_answer_is_read_afterwards(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        rig.backend.hold()
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(HEAD % 7 + b"class:1" + HEAD % 2_000_000 + b"class:2" + b" " * 1_000_000)
        await rig.backend.batches_arrived(1)
        rig.backend.release()
        async with asyncio.timeout(20):
            assert b" 200 " in (await answer_from(reader))[0]
            writer.write(b" " * 999_993 + HEAD % 7 + b"class:3")
            answers = [await answer_from(reader) for _ in range(2)]
        writer.close()
    assert [b" 200 " in head for head, _ in answers] == [True, True]
