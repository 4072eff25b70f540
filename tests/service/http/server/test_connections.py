"""Too many connections, from one address and in all, and clients that do not read what they asked for."""

import asyncio
import contextlib
import resource
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from service.http.server import connections
from service.process.descriptors import RESERVE
from tests.faults import recovery
from tests.gateway import GatewayProcess, running_gateway
from tests.service.http.server.connecting import clients_of, ended, flood_of
from tests.service.http.server.test_protocol import answer_from
from tests.service.http.server.test_server import A_PREDICTION, A_PROBE

pytestmark = pytest.mark.anyio

LARGE = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: t\r\n\r\n"
LARGE_BYTES = 1024 * 1024  # at least


async def test_the_longest_idle_connection_of_an_address_makes_room(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_connections_per_address=3) as rig, clients_of(rig) as clients:
        first, second, third = [await clients.open("127.0.0.2") for _ in range(3)]
        for each in (second, third, first):
            await each.asks()  # so that `second` has been idle for longest
        fourth = await clients.open("127.0.0.2")
        await second.is_ended()
        for each in (fourth, third, first):
            await each.asks()
        await (await clients.open("127.0.0.3")).asks()
        assert await ended(rig, "displaced") == 1
        await rig.until("torchgate_connections", 5, listener="http")  # the rig's own is one of them


async def test_a_head_that_does_not_end_makes_room(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_connections_per_address=2) as rig, clients_of(rig) as clients:
        slow, other = await clients.open("127.0.0.2"), await clients.open("127.0.0.2")
        for each in (slow, other):
            await each.asks()
        slow.writer.write(A_PROBE[:20])
        await other.asks()
        await other.asks()
        new = await clients.open("127.0.0.2")
        await new.asks()
        ends = [asyncio.create_task(each.reader.read()) for each in (slow, other)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert [each.done() for each in ends] == [True, False]
        ends[1].cancel()


async def test_requests_in_progress_keep_their_place(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_connections_per_address=2) as rig, clients_of(rig) as clients:
        rig.backend.hold()
        busy = [await clients.open("127.0.0.2") for _ in range(2)]
        for each in busy:
            each.writer.write(A_PREDICTION)
        await rig.until("torchgate_http_requests_in_progress", 2, route="/predict")
        await (await clients.open("127.0.0.2")).is_refused("address_connections_full")
        await (await clients.open("127.0.0.3")).asks()
        rig.backend.release()
        for each in busy:
            assert (await answer_from(each.reader))[0].startswith(b"HTTP/1.1 200 ")
        await (await clients.open("127.0.0.2")).asks()
        assert await ended(rig, "address_full") == 1
        assert await ended(rig, "displaced") == 1


async def test_with_too_many_in_all_the_address_with_most_makes_room(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_connections=16) as rig, clients_of(rig) as clients:
        many = [await clients.open("127.0.0.2") for _ in range(12)]
        few = [await clients.open("127.0.0.3") for _ in range(3)]
        for each in (*few, *many):
            await each.asks()
        for _ in range(2):
            new = await clients.open("127.0.0.4")
            await new.asks()
        for each in many[:2]:
            await each.is_ended()
        for each in (*few, *many[2:]):
            await each.asks()


async def test_with_all_in_progress_the_next_is_refused(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_connections=16) as rig, clients_of(rig) as clients:
        rig.backend.hold()
        busy = [await clients.open("127.0.0.2") for _ in range(15)]
        for each in busy:
            each.writer.write(A_PREDICTION)
        await rig.until("torchgate_http_requests_in_progress", 15, route="/predict")
        await (await clients.open("127.0.0.2")).is_refused("connections_full")  # the rig's is idle, and has fewer
        await (await clients.open("127.0.0.3")).asks()
        rig.backend.release()
        for each in busy:
            assert (await answer_from(each.reader))[0].startswith(b"HTTP/1.1 200 ")


async def test_a_flood_is_not_told_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_REFUSED", 3)
    async with running_gateway(tmp_path, max_connections_per_address=1) as rig, clients_of(rig) as clients:
        rig.backend.hold()
        busy = await clients.open("127.0.0.2")
        busy.writer.write(A_PREDICTION)
        await rig.backend.batches_arrived(1)
        flood = [await clients.open("127.0.0.2") for _ in range(10)]
        num_told = 0
        for each in flood:
            with contextlib.suppress(ConnectionError):
                num_told += (await each.reader.read(12)).startswith(b"HTTP/1.1 503")
        assert 1 <= num_told <= 3
        assert await ended(rig, "address_full") == 10
        rig.backend.release()


async def test_a_flood_leaves_others_their_turns(tmp_path: Path) -> None:
    num_new = 600
    async with running_gateway(tmp_path) as rig, clients_of(rig) as clients:
        fair = await clients.open()
        await fair.asks()
        with contextlib.ExitStack() as flood:
            for _ in range(num_new):  # the event loop waits meanwhile, and finds them all at once
                flood.enter_context(socket.create_connection(("127.0.0.1", rig.port)))
            fair.writer.write(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n")
            _, body = await answer_from(fair.reader)
            (line,) = [each for each in body.splitlines() if each.startswith(b'torchgate_connections{listener="http"}')]
            assert float(line.split()[1]) < num_new / 2
            await rig.until("torchgate_connections", num_new + 1, listener="http")


async def test_who_comes_after_a_flood_has_a_turn_before_its_end(tmp_path: Path) -> None:
    num_new = 600
    async with running_gateway(tmp_path) as rig, clients_of(rig) as clients:
        with contextlib.ExitStack() as stack:
            flood_of(stack, rig, num_new)
            newcomer = await clients.open()
            newcomer.writer.write(b"GET /metrics HTTP/1.1\r\nHost: t\r\n\r\n")
            _, body = await answer_from(newcomer.reader)
            (line,) = [each for each in body.splitlines() if each.startswith(b'torchgate_connections{listener="http"}')]
            assert float(line.split()[1]) < num_new / 2
            await rig.until("torchgate_connections", num_new + 1, listener="http")


async def test_of_one_address_the_newest_are_opened(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_connections_per_address=2) as rig:
        with contextlib.ExitStack() as stack:
            *old, first, second = flood_of(stack, rig, 50)
            for each in (first, second):
                each.sendall(A_PROBE)
                assert (await answer_of(each)).startswith(b"HTTP/1.1 200 ")
            for each in old:
                assert await answer_of(each) == b""
            assert await ended(rig, "displaced") == len(old)


async def test_those_that_were_taken_are_answered_though_the_listener_closes(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        with contextlib.ExitStack() as stack:
            waiting = flood_of(stack, rig, 100)
            for each in waiting:
                each.sendall(A_PROBE)
            first, *others = waiting
            assert (await answer_of(first)).startswith(b"HTTP/1.1 200 ")
            for server in rig.server.servers:
                server.close()
            for each in others:
                assert (await answer_of(each)).startswith(b"HTTP/1.1 200 ")


async def answer_of(plain: socket.socket) -> bytes:
    """Return the first bytes of an answer, none at the end of the connection."""
    plain.setblocking(False)
    async with asyncio.timeout(10):
        return await asyncio.get_running_loop().sock_recv(plain, 1000)


async def test_a_trusted_proxy_may_have_any_number(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, max_connections_per_address=1, trusted_proxies="127.0.0.2") as rig,
        clients_of(rig) as clients,
    ):
        for each in [await clients.open("127.0.0.2") for _ in range(5)]:
            await each.asks()


async def test_a_client_that_does_not_read_is_cut_off_and_a_slow_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(connections, "LEAST_READ_BYTES", 1024)
    async with running_gateway(tmp_path, write_timeout_seconds=1) as rig, clients_of(rig) as clients:
        slow, deaf = [await clients.open("127.0.0.2", receive_bytes=16384) for _ in range(2)]
        for each in (slow, deaf):
            each.writer.write(LARGE * 8)
        num_read = 0
        while not await ended(rig, "stalled"):  # a second and more
            num_read += len(await slow.reader.readexactly(16384))
            await asyncio.sleep(0.05)
        with pytest.raises(ConnectionError):
            await deaf.reader.readexactly(4 * LARGE_BYTES)
        while num_read < 8 * LARGE_BYTES:
            num_read += len(await slow.reader.read(65536))
        assert await ended(rig, "stalled") == 1


async def test_what_waits_for_all_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.1)
    options: dict[str, Any] = {"max_body_bytes": 200_000, "max_buffered_bytes": 400_000, "max_batch_bytes": 200_000}
    async with running_gateway(tmp_path, **options) as rig, clients_of(rig) as clients:
        fair = await clients.open("127.0.0.3", receive_bytes=16384)
        fair.writer.write(LARGE)
        greedy = [await clients.open("127.0.0.2", receive_bytes=16384) for _ in range(8)]
        for each in greedy:
            each.writer.write(LARGE * 8)
        await rig.until("torchgate_http_requests_in_progress", 9, route="other")  # and the one that asks for /metrics
        async with asyncio.timeout(10):
            while not await ended(rig, "unread"):
                await asyncio.sleep(0.05)
        head = await fair.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert len(await fair.reader.readexactly(LARGE_BYTES)) == LARGE_BYTES
        assert await ended(rig, "unread") < 8


def test_descriptors_are_left_for_the_rest(tmp_path: Path) -> None:
    most = 44
    gateway = GatewayProcess(TORCHGATE_MODEL_STORE=str(tmp_path))
    gateway.command = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(RESERVE + most), *gateway.command]
    with gateway, contextlib.ExitStack() as stack:
        assert f"at most {most} connections instead of TORCHGATE_MAX_CONNECTIONS=4096" in gateway.log
        host, port = gateway.url.removeprefix("http://").split(":")
        for _ in range(4 * most):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        assert gateway.get("/healthz").status_code == 200
        assert f'torchgate_connections{{listener="http"}} {most}.0' in gateway.get("/metrics").text
        with recovery("descriptors"):
            stack.close()
            while 'torchgate_connections{listener="http"} 1.0' not in gateway.get("/metrics").text:
                time.sleep(0.01)


def test_the_soft_limit_of_descriptors_is_raised(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gateway = GatewayProcess(TORCHGATE_MODEL_STORE=str(tmp_path))
    gateway.command = ["sh", "-c", 'ulimit -S -n 200 && exec "$@"', "sh", *gateway.command]
    with gateway:
        assert gateway.process is not None
        (line,) = [
            line
            for line in Path(f"/proc/{gateway.process.pid}/limits").read_text().splitlines()
            if line.startswith("Max open files")
        ]
        assert line.split()[3:5] == [str(hard), str(hard)]
