"""Who a client is: by its connection, or by what a trusted proxy says of it; and for whom requests may be."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio


async def logged_client(rig: Rig, capsys: pytest.CaptureFixture[str], *headers: tuple[str, str]) -> str:
    """Return the client's address in the access log's line of one prediction."""
    capsys.readouterr()
    request = rig.client.build_request("POST", "/predict", content=b"class:1", headers=[*headers, IMAGE])
    assert (await rig.client.send(request)).status_code == 200
    return await _last_address(capsys)


IMAGE = ("Content-Type", "image/png")


async def _last_address(capsys: pytest.CaptureFixture[str]) -> str:
    said = ""
    async with asyncio.timeout(10):
        while '"message": "request"' not in said:
            await asyncio.sleep(0)
            said += capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if '"message": "request"' in line]
    return str(json.loads(line)["client"])


@pytest.mark.parametrize(
    ("proxies", "headers", "address"),
    [
        (None, [], "127.0.0.1"),
        (None, [("X-Forwarded-For", "203.0.113.7")], "127.0.0.1"),
        ("10.0.0.0/8", [("X-Forwarded-For", "203.0.113.7")], "127.0.0.1"),
        ("127.0.0.0/8", [], "127.0.0.1"),
        ("127.0.0.1", [("X-Forwarded-For", "203.0.113.7")], "203.0.113.7"),
        # What stands left of the nearest untrusted address may be forged.
        ("127.0.0.1", [("X-Forwarded-For", "198.51.100.1, 203.0.113.7")], "203.0.113.7"),
        ("127.0.0.1, 10.0.0.0/8", [("X-Forwarded-For", "198.51.100.1,203.0.113.7, 10.1.2.3")], "203.0.113.7"),
        ("127.0.0.1", [("X-Forwarded-For", "198.51.100.1"), ("X-Forwarded-For", "203.0.113.7")], "203.0.113.7"),
        ("127.0.0.1", [("X-Forwarded-For", "203.0.113.7:4711")], "203.0.113.7"),
        ("127.0.0.1", [("X-Forwarded-For", "[2001:db8::7]:4711")], "2001:db8::7"),
        ("127.0.0.1", [("X-Forwarded-For", "2001:DB8:0::7")], "2001:db8::7"),
        ("127.0.0.1", [("X-Forwarded-For", "::ffff:203.0.113.7")], "203.0.113.7"),
        ("127.0.0.1, 10.0.0.0/8", [("X-Forwarded-For", "203.0.113.7, unknown, 10.0.0.1")], "10.0.0.1"),
        ("127.0.0.1", [("X-Forwarded-For", "a client")], "127.0.0.1"),
    ],
)
async def test_the_log_has_the_nearest_address_that_is_no_trusted_proxy(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    proxies: str | None,
    headers: list[tuple[str, str]],
    address: str,
) -> None:
    async with running_gateway(tmp_path, trusted_proxies=proxies) as rig:
        assert await logged_client(rig, capsys, *headers) == address


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({}, "localhost:8000", 200),
        ({}, "127.0.0.1", 200),
        ({}, "127.9.9.9:80", 200),
        ({}, "[::1]:8000", 200),
        ({}, "rebound.example", 421),
        ({}, "127.0.0.1.rebound.example", 421),
        ({}, "192.0.2.1", 421),
        ({}, "rebound.example@localhost", 421),
        ({}, "localhost/path", 421),
        ({}, "localhost:8000:80", 421),
        ({"host": "0.0.0.0"}, "anything.example", 200),  # noqa: S104 - the setting alone
        ({"allowed_hosts": "*"}, "anything.example", 200),
        ({"allowed_hosts": "gateway.example, 192.0.2.1"}, "Gateway.Example:443", 200),
        ({"allowed_hosts": "gateway.example, 192.0.2.1"}, "192.0.2.1", 200),
        ({"allowed_hosts": "gateway.example, 192.0.2.1"}, "localhost", 421),
    ],
)
async def test_requests_are_answered_for_allowed_hosts_alone(
    tmp_path: Path, settings: dict[str, Any], host: str, status: int
) -> None:
    async with (
        running_gateway(tmp_path, wait_until_ready=False, **{"allowed_hosts": None, **settings}) as rig,
        httpx.AsyncClient(base_url=rig.url, trust_env=False) as client,
    ):
        for answer in (
            await client.get("/healthz", headers={"Host": host}),
            await client.post("/predict?top_k=0", content=b"class:1", headers={"Host": host}),
        ):
            if status == 200:
                assert answer.status_code in {200, 422}, answer.text
            else:
                assert answer.status_code == status
                assert answer.json()["code"] == "host_not_allowed"
                assert "TORCHGATE_ALLOWED_HOSTS" in answer.json()["detail"]


async def test_a_host_of_any_kind_is_refused_in_time(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, wait_until_ready=False, allowed_hosts=None) as rig:
        for i in range(600):  # more than are remembered
            assert (await rig.client.get("/healthz", headers={"Host": f"127.0.0.1:{i}"})).status_code == 200
        assert (await rig.client.get("/healthz", headers={"Host": "[broken"})).status_code == 421
