"""Handshakes of TLS: how they end, and that many at once keep nobody waiting."""

import asyncio
import contextlib
import select
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from service.http.tls import handshakes
from tests.certificates import Files
from tests.gateway import Rig, running_gateway
from tests.service.http.server.connecting import Client, Clients, clients_of, ended, flood_of
from tests.service.http.server.test_protocol import answer_from
from tests.service.http.server.test_server import A_PROBE, send_signal

pytestmark = pytest.mark.anyio

NUM_NEW = 200


@contextlib.asynccontextmanager
async def tls_gateway(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Rig, ssl.SSLContext]]:
    files = Files(tmp_path, trustme.CA())
    files.issue()
    options |= {"tls_cert_file": files.certificate, "tls_key_file": files.key}
    async with running_gateway(tmp_path, verify=files.trust, **options) as rig:
        yield rig, files.trust


async def test_connections_count_before_their_handshake(tmp_path: Path) -> None:
    async with (
        tls_gateway(tmp_path, max_connections_per_address=2) as (rig, trust),
        clients_of(rig) as clients,
    ):
        silent = [await clients.open("127.0.0.2") for _ in range(4)]
        for each in silent[:2]:
            await each.is_ended()
        await rig.until("torchgate_connections", 3, listener="http")  # the rig's own is one of them
        told = await clients.open("127.0.0.2")
        await told.writer.start_tls(trust, server_hostname="127.0.0.1")
        await told.asks()
        await silent[2].is_ended()
        assert await ended(rig, "displaced") == 3
        await told.asks()


async def test_a_handshake_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECONDS", 0.3)
    async with tls_gateway(tmp_path) as (rig, _), clients_of(rig) as clients:
        await (await clients.open("127.0.0.2")).is_ended()
        await rig.until("torchgate_connections", 1, listener="http")


async def test_a_connection_retires_that_was_in_its_handshake(tmp_path: Path) -> None:
    async with (
        tls_gateway(tmp_path, lame_duck_seconds=60) as (rig, trust),
        clients_of(rig) as clients,
    ):
        new = await clients.open()
        await rig.until("torchgate_connections", 2, listener="http")
        send_signal(rig)
        await rig.until_ready(503)
        await new.writer.start_tls(trust, server_hostname="127.0.0.1")
        new.writer.write(A_PROBE)
        head, _ = await answer_from(new.reader)
        assert head.lower().count(b"\r\nconnection: close\r\n") == 1
        await new.is_ended()
        send_signal(rig)


async def test_what_comes_right_behind_the_handshake_is_answered(tmp_path: Path) -> None:
    async with tls_gateway(tmp_path) as (rig, trust), clients_of(rig) as clients:
        plain = await clients.open("127.0.0.2")
        received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trust.wrap_bio(received, sent, server_hostname="127.0.0.1")
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        for byte in sent.read():  # its first step in many pieces
            plain.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        while True:
            received.write(await plain.reader.read(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
        client.write(A_PROBE)
        plain.writer.write(sent.read())  # the last step and the request in one piece
        answer = b""
        while b"\r\n\r\n" not in answer:
            received.write(await plain.reader.read(65536))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer += client.read()
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_what_is_no_handshake_ends(tmp_path: Path) -> None:
    async with tls_gateway(tmp_path) as (rig, _), clients_of(rig) as clients:
        plain = await clients.open("127.0.0.2")
        plain.writer.write(A_PROBE)
        await plain.reader.read()  # the alert, then the end
        await rig.until("torchgate_connections", 1, listener="http")


async def test_a_client_that_leaves_in_its_handshake_is_forgotten(tmp_path: Path) -> None:
    async with tls_gateway(tmp_path) as (rig, _), clients_of(rig) as clients:
        for sent in (b"", first_step()[:20], first_step()):
            plain = await clients.open("127.0.0.2")
            await rig.until("torchgate_connections", 2, listener="http")
            plain.writer.write(sent)
            plain.writer.close()
            await rig.until("torchgate_connections", 1, listener="http")


async def test_many_handshakes_at_once_leave_others_their_turns(tmp_path: Path) -> None:
    async with tls_gateway(tmp_path) as (rig, trust), clients_of(rig) as clients:
        fair = await encrypted(clients, trust)
        with contextlib.ExitStack() as stack:
            flood = await silent_flood(stack, rig, 1)
            step = first_step()
            for each in flood:  # the event loop waits meanwhile, and finds them all at once
                each.sendall(step)
            await fair.asks()
            assert num_answered(flood) < NUM_NEW / 2
            await until_answered(flood)


async def test_who_comes_after_many_handshakes_has_a_turn_before_their_end(tmp_path: Path) -> None:
    async with tls_gateway(tmp_path) as (rig, trust), clients_of(rig) as clients:
        with contextlib.ExitStack() as stack:
            flood = await silent_flood(stack, rig, 0)
            step = first_step()
            for each in flood:
                each.sendall(step)
            await (await encrypted(clients, trust)).asks()
            assert num_answered(flood) < NUM_NEW / 2
            await until_answered(flood)


async def encrypted(clients: Clients, trust: ssl.SSLContext) -> Client:
    """Return a connection whose handshake has ended."""
    client = await clients.open()
    await client.writer.start_tls(trust, server_hostname="127.0.0.1")
    return client


async def silent_flood(stack: contextlib.ExitStack, rig: Rig, num_others: int) -> list[socket.socket]:
    """Open connections that do not begin their handshake."""
    flood = flood_of(stack, rig, NUM_NEW)
    await rig.until("torchgate_connections", NUM_NEW + num_others + 1, listener="http")
    return flood


def first_step() -> bytes:
    """Return what a client says first in a handshake."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def num_answered(flood: list[socket.socket]) -> int:
    """Return how many of them have an answer to read."""
    poll = select.poll()
    for each in flood:
        poll.register(each, select.POLLIN)
    return len(poll.poll(0))


async def until_answered(flood: list[socket.socket]) -> None:
    """Wait until all of them have their answer."""
    async with asyncio.timeout(20):
        while num_answered(flood) < len(flood):
            await asyncio.sleep(0.01)
