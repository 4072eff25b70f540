"""wrk with the project's script, against a server that counts."""

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest

from benchmarks.load.closed_loop import closed_loop
from benchmarks.load.endpoint import FRESH_HEADERS, MARKER, Endpoint


@pytest.mark.system
def test_bodies_go_round_and_refusals_are_no_throughput(tmp_path: Path) -> None:
    assert shutil.which("wrk"), "wrk is missing: make system-packages installs it"
    bodies = [tmp_path / "good", tmp_path / "bad"]
    for path in bodies:
        path.write_text(path.name)
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                assert b"content-type: image/png" in head
                body = await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
                received.append(body)
                status = b"200 OK" if body == b"good" else b"429 Too Many Requests"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async def test() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            endpoint = Endpoint(server.sockets[0].getsockname()[1], "/predict", "image/png", bodies)
            outcome = await asyncio.to_thread(closed_loop, endpoint, 2, 1)
        assert set(received) == {b"good", b"bad"}
        num_good = outcome["requests"] - outcome["errors"]["status"]
        assert outcome["throughput"] == pytest.approx(num_good / outcome["seconds"])
        assert outcome["num_errors"] == outcome["errors"]["status"] > 0
        assert 0 < outcome["p50_ms"] <= outcome["p99_ms"]

    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.system
def test_every_request_is_new_where_the_workload_wants_it(tmp_path: Path) -> None:
    assert shutil.which("wrk"), "wrk is missing: make system-packages installs it"
    (tmp_path / "body").write_text(f"({MARKER})")
    bodies: list[bytes] = []
    ids: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                bodies.append(await reader.readexactly(len(MARKER) + 2))
                names = (b"x-request-id", b"traceparent")
                ids.extend(line for line in head.split(b"\r\n") if line.startswith(names))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async def test() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            endpoint = Endpoint(port, "/predict", "image/png", [tmp_path / "body"], FRESH_HEADERS)
            outcome = await asyncio.to_thread(closed_loop, endpoint, 2, 1)
        assert outcome["num_errors"] == 0
        assert outcome["generator_us"] > 0
        assert len(set(bodies)) == len(bodies) > 10
        assert len(set(ids)) == 2 * len(bodies)

    asyncio.run(asyncio.wait_for(test(), 60))
