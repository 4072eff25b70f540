"""Heads of requests that are too long or do not come, over a real socket."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.http.server.protocol import BoundedHttpProtocol
from tests.gateway import running_gateway

pytestmark = pytest.mark.anyio


class Impatient(BoundedHttpProtocol):
    max_head_seconds = 0.5


class Forgetful(BoundedHttpProtocol):
    """Keeps idle connections for a second."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.timeout_keep_alive = 1


async def answer_to(port: int, *pieces: bytes) -> bytes:
    """Send raw bytes until the gateway hangs up; return all that it said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(15):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await reader.read()
    finally:
        writer.close()


async def answer_from(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one answer; return its head and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length:"))
    return head, await reader.readexactly(int(length.split(b":")[1]))


async def test_a_head_without_end_is_refused(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: t\r\nX-Long: ")
        sent = 0
        async with asyncio.timeout(15):
            try:
                while sent < 64 * 1024 * 1024:
                    writer.write(b"a" * 65536)
                    await writer.drain()
                    sent += 65536
            except ConnectionError:
                pass
        writer.close()
        assert sent < 32 * 1024 * 1024  # what the sockets' buffers take, not what the gateway read
        del reader
        headers = [(f"X-{number}", "a" * 1000) for number in range(100)]
        many = await answer_to(
            rig.port, b"GET /healthz HTTP/1.1\r\n" + b"".join(f"{n}: {v}\r\n".encode() for n, v in headers)
        )
        assert many.startswith(b"HTTP/1.1 431 ")
        assert (await rig.predict(b"class:1", headers={"X-Large": "a" * 30_000})).status_code == 200


async def test_a_head_that_does_not_come(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, http=Impatient) as rig:
        assert (await answer_to(rig.port, b"GET /healthz HT")).startswith(b"HTTP/1.1 408 ")
        assert await answer_to(rig.port) == b""  # opened and not used: closed without a word
        assert (await rig.predict(b"class:1")).status_code == 200


async def test_requests_that_follow_each_other_on_one_connection(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, http=Impatient) as rig:
        request = b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n"
        last = b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
        assert (await answer_to(rig.port, request * 3 + last)).count(b"HTTP/1.1 200") == 4


async def test_a_slow_answer_outlasts_the_patience_with_heads(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, http=Impatient) as rig:
        rig.backend.hold()
        waiting = asyncio.create_task(rig.predict(b"class:1"))
        await rig.backend.batches_arrived(1)
        await asyncio.sleep(2 * Impatient.max_head_seconds)  # the time itself is what is tested
        rig.backend.release()
        assert (await waiting).status_code == 200


async def test_what_is_not_http_is_refused(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        assert (await answer_to(rig.port, b"\x16\x03\x01 hello\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        slash = await rig.client.get("/models/")
        assert (slash.status_code, slash.json()["code"]) == (404, "route_not_found")


@pytest.mark.parametrize("rest", [b"t\r\n\r\n", b"", b"t\r\nX-Long: " + b"a" * 200_000])
async def test_the_next_head_harms_no_answer_that_is_due(tmp_path: Path, rest: bytes) -> None:
    async with running_gateway(tmp_path, http=Impatient) as rig:
        rig.backend.hold()
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        body = b"class:1" + b" " * 100_000
        writer.write(b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: ")
        await rig.backend.batches_arrived(1)
        writer.write(rest)
        if rest != b"t\r\n\r\n":
            await asyncio.sleep(2 * Impatient.max_head_seconds)  # the time itself is what is tested
        rig.backend.release()
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 200"), head


HEAD = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 7\r\n"
LABELS = [b"zero", b"one", b"two", b"three"]


@pytest.mark.parametrize("cut", [10, len(HEAD) - 1, len(HEAD) + 1, len(HEAD) + 2, len(HEAD) + 5])
async def test_a_request_may_be_cut_anywhere(tmp_path: Path, cut: int) -> None:
    async with running_gateway(tmp_path) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        request = HEAD + b"\r\nclass:1"
        for index in (1, 2, 3):
            request = HEAD + f"\r\nclass:{index}".encode()
            writer.write(request[:cut])
            await asyncio.sleep(0.01)  # so that it comes in two pieces; one would do as well
            writer.write(request[cut:])
            async with asyncio.timeout(15):
                head, body = await answer_from(reader)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b'"label":"' + LABELS[index] in body
        writer.close()


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    requests = [HEAD + f"\r\nclass:{index}".encode() for index in (1, 2, 3)]
    requests += [b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n", HEAD + b"Connection: close\r\n\r\nclass:0"]
    async with running_gateway(tmp_path) as rig:
        said = await answer_to(rig.port, b"".join(requests))
        assert said.count(b"HTTP/1.1 200 ") == 5
        found = [LABELS.index(part.split(b'"')[0]) for part in said.split(b'"predictions":[{"label":"')[1:]]
        assert found == [1, 2, 3, 0]
        assert said.lower().count(b"connection: close") == 1


async def test_http_1_0_closes_after_its_answer(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        said = await answer_to(rig.port, b"POST /predict HTTP/1.0\r\nContent-Length: 7\r\n\r\nclass:2")
        assert b'"label":"two"' in said
        assert b"connection: close" in said.lower()


async def test_a_malformed_chunk_begins_nothing(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        head = b"POST /predict HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (await answer_to(rig.port, head + b"zz\r\nclass:1\r\n")).startswith(b"HTTP/1.1 400 ")
        assert rig.backend.batches == []
        assert await rig.metric("torchgate_http_requests_in_progress", route="/predict") == 0


WHOLE = HEAD + b"\r\nclass:1"
REFUSED = b"POST /predict?top_k=0 HTTP/1.1\r\nHost: t\r\nContent-Length: 7\r\n\r\nclass:1"


@pytest.mark.parametrize(
    ("pieces", "num_answers"),
    [
        ([WHOLE], 1),  # again
        ([WHOLE.replace(b"Host: t", b"Host: u")], 1),
        ([WHOLE[:-1], WHOLE[-1:]], 1),
        ([REFUSED + WHOLE], 2),
        ([REFUSED + WHOLE[:10], WHOLE[10:]], 2),
    ],
)
async def test_only_who_waits_for_nothing_is_hung_up_on(tmp_path: Path, pieces: list[bytes], num_answers: int) -> None:
    async with running_gateway(tmp_path, http=Forgetful) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        async with asyncio.timeout(15):
            writer.write(WHOLE)
            assert b" 200 " in (await answer_from(reader))[0]
            rig.backend.hold()
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.05)  # so that they come one by one; together they would do as well
            await rig.backend.batches_arrived(2)
            await asyncio.sleep(1.5)  # longer than an idle connection is kept: the time itself is what is tested
            rig.backend.release()
            said = [await answer_from(reader) for _ in range(num_answers)]
            assert b" 200 " in said[-1][0]
            writer.write(b"\r\n")  # which is no request
            assert await reader.read() == b""
        writer.close()
