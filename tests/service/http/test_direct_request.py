"""Requests past ASGI that come in unusual ways: held back, behind others, spelled otherwise, never read."""

import asyncio
import socket
from pathlib import Path

import pytest

from tests.gateway import running_gateway
from tests.service.http.server.test_protocol import answer_from, answer_to

pytestmark = pytest.mark.anyio

HEAD = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Length: 7\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n"
REFUSED = b"POST /predict?top_k=0 HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"


async def test_a_client_that_holds_its_body_back_is_told_to_continue(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        for index in (b"1", b"2"):
            writer.write(HEAD.replace(b"Host: t", b"Host: t\r\nExpect: 100-continue"))
            async with asyncio.timeout(10):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(b"class:" + index)
                head, body = await answer_from(reader)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b'"predictions":[{"label":"' + {b"1": b"one", b"2": b"two"}[index] in body
        writer.close()


async def test_requests_wait_behind_one_that_is_not_answered(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        rig.backend.hold()
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(HEAD + b"class:1" + HEALTH + HEAD + b"class:2" + HEALTH + HEAD + b"cla")
        await rig.backend.batches_arrived(1)
        assert rig.backend.batches == [[b"class:1"]]
        rig.backend.release()
        async with asyncio.timeout(10):
            bodies = [(await answer_from(reader))[1] for _ in range(4)]
            writer.write(b"ss:3")
            bodies.append((await answer_from(reader))[1])
        writer.close()
    assert [b"predictions" in body for body in bodies] == [True, False, True, False, True]
    assert rig.backend.batches == [[b"class:1"], [b"class:2"], [b"class:3"]]


async def test_thousands_of_requests_wait_behind_one_that_is_not_answered(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        rig.backend.hold()
        asked = asyncio.create_task(answer_to(rig.port, HEAD + b"class:1" + REFUSED * 3000 + LAST))
        await rig.backend.batches_arrived(1)
        rig.backend.release()
        said = await asked
    assert said.count(b"HTTP/1.1 422 ") == 3000
    assert said.count(b"HTTP/1.1 200 ") == 2


async def test_a_client_that_does_not_read_gets_no_more_requests_answered(tmp_path: Path) -> None:
    num_requests = 20_000
    async with running_gateway(tmp_path) as rig:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", rig.port))
            sending = asyncio.create_task(loop.sock_sendall(client, REFUSED * num_requests + LAST))
            route = {"route": "/predict", "code": "422"}
            async with asyncio.timeout(20):
                while not any(each.flow.write_paused for each in rig.server.server_state.connections):  # type: ignore[union-attr]
                    await asyncio.sleep(0.01)
            num_answered = await rig.metric("torchgate_http_requests_total", **route)
            assert 0 < num_answered < num_requests
            for _ in range(5):
                assert await rig.metric("torchgate_http_requests_total", **route) == num_answered
            num_read, tail = 0, b""
            async with asyncio.timeout(30):
                while data := await loop.sock_recv(client, 2**20):
                    num_read += (tail + data).count(b"HTTP/1.1 422 ")
                    tail = (tail + data)[-12:]
                await sending
    assert num_read == num_requests


@pytest.mark.parametrize("target", [b"/%70redict", b"http://t/predict", b"/predict?top_k=2"])
async def test_other_spellings_of_the_path(tmp_path: Path, target: bytes) -> None:
    async with running_gateway(tmp_path) as rig:
        said = await answer_to(rig.port, HEAD.replace(b"/predict", target) + b"class:2" + LAST)
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b'"label":"two"' in said


async def test_a_refusal_before_the_end_of_the_body_closes_the_connection(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(HEAD.replace(b"/predict", b"/predict?top_k=0"))
        async with asyncio.timeout(10):
            head, _ = await answer_from(reader)
            assert head.startswith(b"HTTP/1.1 422 ")
            assert b"\r\nconnection: close\r\n" in head
            writer.write(b"class:1" + HEALTH)  # the body is read, what follows it is not
            assert await reader.read() == b""
        writer.close()
        assert await rig.metric("torchgate_http_requests_in_progress", route="/predict") == 0
