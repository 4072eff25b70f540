"""Bodies that are too long, too slow or never end, over a real socket."""

import asyncio
import json
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
