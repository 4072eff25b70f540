"""How the gateway stops: readiness first, then the listener, then the requests in progress."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.gateway import Rig, running_gateway
from tests.service.http.server.test_protocol import answer_from

pytestmark = pytest.mark.anyio

A_PREDICTION = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\nContent-Length: 7\r\n\r\nclass:2"
A_PROBE = b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n"


@asynccontextmanager
async def connection(rig: Rig) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    try:
        async with asyncio.timeout(15):
            yield reader, writer
    finally:
        writer.close()


def send_signal(rig: Rig, kind: signal.Signals = signal.SIGTERM) -> None:
    rig.server.handle_exit(kind, None)


async def until_refused(rig: Rig) -> None:
    async with asyncio.timeout(15):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            except ConnectionError:
                return
            writer.close()
            await asyncio.sleep(0.02)


async def test_a_lame_duck_says_no_and_goes_on_answering(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, lame_duck_seconds=60) as rig, connection(rig) as (reader, writer):
        writer.write(A_PROBE)
        assert b"connection: close" not in (await answer_from(reader))[0].lower()
        send_signal(rig)
        answer = await rig.until_ready(503)
        assert answer.json()["code"] == "draining"
        assert answer.headers["retry-after"] == "1"
        for request in (A_PREDICTION, A_PROBE):
            async with connection(rig) as (new_reader, new_writer):
                new_writer.write(request)
                head, _ = await answer_from(new_reader)
                assert head.startswith(b"HTTP/1.1 200 ")
                assert head.lower().count(b"\r\nconnection: close\r\n") == 1
                assert await new_reader.read() == b""
        # The idle connection is still there, and its next answer is its last.
        writer.write(A_PREDICTION)
        head, _ = await answer_from(reader)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert head.lower().count(b"\r\nconnection: close\r\n") == 1
        assert await reader.read() == b""
        send_signal(rig)  # not another 60 s
        await until_refused(rig)


@pytest.mark.parametrize("lame_duck_seconds", [0, 60])
async def test_a_request_in_progress_ends_and_its_answer_is_the_last(tmp_path: Path, lame_duck_seconds: float) -> None:
    async with (
        running_gateway(tmp_path, lame_duck_seconds=lame_duck_seconds, drain_seconds=10) as rig,
        connection(rig) as (reader, writer),
        connection(rig) as (idle, _),
    ):
        rig.backend.hold()
        writer.write(A_PREDICTION)
        await rig.backend.batches_arrived(1)
        send_signal(rig)
        send_signal(rig)
        await until_refused(rig)
        assert await idle.read() == b""
        rig.backend.release()
        head, _ = await answer_from(reader)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert head.lower().count(b"\r\nconnection: close\r\n") == 1
        assert await reader.read() == b""


async def test_the_lame_duck_ends_by_itself(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, lame_duck_seconds=0.3) as rig:
        send_signal(rig)
        await until_refused(rig)


async def test_a_second_ctrl_c_ends_the_drain(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, drain_seconds=60) as rig, connection(rig) as (_, writer):
        rig.backend.hold()
        writer.write(A_PREDICTION)
        await rig.backend.batches_arrived(1)
        send_signal(rig, signal.SIGINT)
        await until_refused(rig)
        send_signal(rig, signal.SIGINT)
    assert rig.server.force_exit
