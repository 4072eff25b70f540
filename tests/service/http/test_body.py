"""Bodies that are too long, too slow or never end, over a real socket."""

import asyncio
import contextlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio

MEBIBYTE = 1024 * 1024


async def talk(rig: Rig, *pieces: bytes, wait_for_end: bool = True) -> tuple[bytes, dict[str, Any]]:
    """Send raw bytes, then read until the gateway closes; return head and document of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(15):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(httpx.Headers(_headers(head))["content-length"])
            document = json.loads(await reader.readexactly(length))
            if wait_for_end:
                assert await reader.read() == b""
    finally:
        writer.close()
    return head, document


def _headers(head: bytes) -> list[tuple[bytes, bytes]]:
    lines = head.split(b"\r\n")[1:-2]
    return [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]


async def test_a_declared_length_over_the_limit(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        answer = await rig.predict(b"x" * (50 * 1000 * 1000))
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert str(32 * MEBIBYTE) in answer.json()["detail"]
        assert answer.headers["connection"] == "close"
        assert (await rig.predict(b"class:1")).status_code == 200


async def test_a_client_that_asks_first_is_not_told_to_continue(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        head, document = await talk(
            rig,
            b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\n"
            b"Content-Length: 52428800\r\nExpect: 100-continue\r\n\r\n",
        )
    assert head.startswith(b"HTTP/1.1 413")
    assert document["code"] == "body_too_large"


async def test_a_chunked_body_that_never_ends(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_body_bytes=MEBIBYTE) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(
            b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        sender = asyncio.create_task(_send_for_ever(writer, chunk))
        async with asyncio.timeout(15):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 413")
            document = json.loads(await reader.readexactly(int(httpx.Headers(_headers(head))["content-length"])))
            assert document["code"] == "stream_too_large"
            await sender  # the gateway hung up, it did not read on for ever
        writer.close()
        assert (await rig.predict(b"class:1")).status_code == 200
        assert await rig.metric("torchgate_rejected_total", reason="too_large") == 1


async def _send_for_ever(writer: asyncio.StreamWriter, chunk: bytes) -> None:
    try:
        while True:
            writer.write(chunk)
            await writer.drain()
    except (ConnectionError, RuntimeError):
        return


@pytest.mark.parametrize("framing", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
async def test_a_body_that_does_not_come(tmp_path: Path, framing: bytes) -> None:
    async with running_gateway(tmp_path, body_timeout_seconds=0.1) as rig:
        head, document = await talk(
            rig, b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\n" + framing + b"\r\n\r\n"
        )
        assert head.startswith(b"HTTP/1.1 408")
        assert document["code"] == "body_timeout"
        assert (await rig.predict(b"class:1")).status_code == 200


async def test_an_unread_body_of_any_route_ends(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        head, document = await talk(
            rig, b"POST /healthz HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000000000\r\n\r\nabc"
        )
    assert head.startswith(b"HTTP/1.1 405")
    assert b"connection: close" in head
    assert document["code"] == "method_not_allowed"


async def test_a_client_that_leaves_within_its_body(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\nContent-Length: 100\r\n\r\nabc")
        await writer.drain()
        writer.close()
        async with asyncio.timeout(10):
            while await rig.metric("torchgate_http_requests_total", route="/predict", code="499") != 1:
                await asyncio.sleep(0.01)
        assert not rig.backend.batches


async def test_a_body_in_many_pieces(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        head, document = await talk(
            rig,
            b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"3\r\ncla\r\n",
            b"4\r\nss:2\r\n",
            b"0\r\n\r\n",
            wait_for_end=False,
        )
    assert head.startswith(b"HTTP/1.1 200")
    assert document["predictions"][0]["label"] == "two"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"instances":[' + b"1," * 2**20 + b"1]}", 400, "body_invalid"),
        (b'{"instances":[' + b'{"b64":""},' * 2**18 + b'{"b64":""}]}', 413, "too_many_images"),
        (b'{"instances":' + b"[" * 2**20, 400, "body_invalid"),
        (b"{" + b'"a":1,' * 2**18 + b'"b":1}', 400, "body_invalid"),
    ],
)
async def test_json_of_millions_of_values_is_refused_before_it_is_parsed(
    tmp_path: Path, body: bytes, status: int, code: str
) -> None:
    async with running_gateway(tmp_path) as rig:
        tracemalloc.start()
        try:
            answer = await rig.predict(body, headers={"Content-Type": "application/json"})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert peak < 8 * len(body)  # copies of the body, the client's included; what was parsed took hundreds of times


async def test_the_bodies_of_all_requests_have_a_budget(tmp_path: Path) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\n"
    async with running_gateway(tmp_path, max_body_bytes=1000, max_buffered_bytes=2000, max_batch_bytes=2000) as rig:
        slow = [await asyncio.open_connection("127.0.0.1", rig.port)]
        for _, writer in slow:
            writer.write(head + b"x" * 990)
        async with asyncio.timeout(10):
            while (answer := await rig.predict(b"class:1" + b" " * 90)).status_code == 200:
                await asyncio.sleep(0.01)
        assert (answer.status_code, answer.json()["code"]) == (429, "buffers_full")
        assert answer.headers["retry-after"] == "1"
        assert await rig.metric("torchgate_rejected_total", reason="buffers_full") == 1
        for _, writer in slow:
            writer.close()
        async with asyncio.timeout(10):
            while (await rig.predict(b"class:1" + b" " * 90)).status_code != 200:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("num_greedy", [1, 3])
async def test_greedy_callers_leave_room_for_the_bodies_of_others(tmp_path: Path, num_greedy: int) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\n"
    async with running_gateway(tmp_path, max_body_bytes=1000, max_buffered_bytes=8000, max_batch_bytes=8000) as rig:
        greedy = []
        for number in range(30):
            source = f"127.0.0.{2 + number % num_greedy}", 0
            _, writer = await asyncio.open_connection("127.0.0.1", rig.port, local_addr=source)
            writer.write(head + b"x" * 990)
            greedy.append(writer)
            async with asyncio.timeout(10):
                while await _num_settled(rig) <= number:
                    await asyncio.sleep(0.01)
        assert await rig.metric("torchgate_rejected_total", reason="buffers_full") >= 30 - 8000 // 990
        assert await rig.metric("torchgate_http_requests_in_progress", route="/predict") >= num_greedy
        for _ in range(3):
            answer = await rig.predict(b"class:1" + b" " * 800)
            assert answer.status_code == 200, answer.text
        for writer in greedy:
            writer.close()
        await rig.until("torchgate_http_requests_in_progress", 0, route="/predict")
        assert (await rig.predict(b"class:1" + b" " * 993)).status_code == 200, "what they held has come back"


async def _num_settled(rig: Rig) -> float:
    """Return how many requests hold a part of their bodies, or were refused for it."""
    return await rig.metric("torchgate_http_requests_in_progress", route="/predict") + await rig.metric(
        "torchgate_rejected_total", reason="buffers_full"
    )


async def test_trailers_without_end_are_cut_off(tmp_path: Path) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
    for trailer in (b"t: v\r\n" * 1000, b"a" * 6000):
        async with running_gateway(tmp_path) as rig:
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            writer.write(head + b"7\r\nclass:1\r\n0\r\nt: ")
            sent = 0
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(15):
                    while sent < 64 * MEBIBYTE:
                        writer.write(trailer)
                        await writer.drain()
                        sent += len(trailer)
            writer.close()
            assert sent < 32 * MEBIBYTE
            assert (await rig.predict(b"class:1")).status_code == 200
            del reader


async def test_a_body_with_trailers_is_read(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        _, document = await talk(
            rig,
            b"POST /predict HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"7\r\nclass:1\r\n0\r\nX-Sum: 1\r\n\r\n",
        )
    assert document["predictions"][0]["label"] == "one"


@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade", b"UPGRADE"])
async def test_a_wish_to_upgrade_is_ignored(tmp_path: Path, name: bytes) -> None:
    async with running_gateway(tmp_path) as rig:
        request = (
            b"POST /predict HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, HTTP2-Settings, close\r\n%s: h2c\r\n"
            b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nContent-Type: image/png\r\nContent-Length: 7\r\n\r\n"
        ) % name
        head, document = await talk(rig, request + b"class:2")
        assert head.startswith(b"HTTP/1.1 200")
        assert document["predictions"][0]["label"] == "two"
        head, document = await talk(rig, request, b"class:3")
        assert document["predictions"][0]["label"] == "three"


async def test_a_body_may_hold_any_words(tmp_path: Path) -> None:
    body = b"class:1" + b" " * 10 + b"\r\nUpgrade: h2c\r\n\r\n"
    async with running_gateway(tmp_path) as rig:
        await rig.predict(body)
        await rig.predict(body)
        assert rig.backend.batches == [[body], [body]]


async def test_who_is_cut_off_at_the_end_of_the_drain_is_told(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, drain_seconds=1) as rig:
        rig.server.config.timeout_graceful_shutdown = 1
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\nhalf")
        async with asyncio.timeout(10):
            while await rig.metric("torchgate_http_requests_in_progress", route="/predict") < 1:
                await asyncio.sleep(0.01)
        rig.server.should_exit = True
        async with asyncio.timeout(15):
            answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503"), answer
    assert json.loads(body)["code"] == "draining"
