"""What browsers are told with every answer, and that the documentation comes from this machine."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from service.http.security_headers import HEADERS
from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio

STRICT = {name.decode(): value.decode() for name, value in HEADERS}
PAGES = ("/status", "/docs", "/errors")


def assert_safe(answer: httpx.Response, what: str) -> None:
    found = {name: answer.headers.get_list(name) for name in STRICT}
    assert found == {name: [value] for name, value in STRICT.items()}, what


async def test_every_answer_carries_the_security_headers(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, api_keys="a-key-of-the-test") as rig:
        document = (await rig.client.get("/openapi.json")).json()
        assert_safe(await rig.predict(b"class:1"), "401 on the direct way")
        answer = await rig.predict(b"class:1", headers={"X-API-Key": "a-key-of-the-test"})
        assert answer.status_code == 200
        assert_safe(answer, "200 on the direct way")
        for path in (*document["paths"], "/openapi.json", "/nowhere", "/docs/swagger-ui-bundle.js"):
            if path in PAGES or path.endswith("/events"):
                continue
            assert_safe(await rig.client.get(path.format_map(_Names())), path)


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "digits"


async def test_pages_have_a_policy_of_their_own_and_no_second_one(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        for page in PAGES:
            answer = await rig.client.get(page)
            (policy,) = answer.headers.get_list("content-security-policy")
            assert policy.startswith("default-src 'none'; ")
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"


async def _raw(rig: Rig, request: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(request)
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return head.decode()


@pytest.mark.parametrize(
    ("status", "request_bytes"),
    [(400, b"no http\r\n\r\n"), (431, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)],
)
async def test_a_refusal_before_any_request_carries_them_too(tmp_path: Path, status: int, request_bytes: bytes) -> None:
    async with running_gateway(tmp_path) as rig:
        head = (await _raw(rig, request_bytes)).lower()
    assert head.startswith(f"http/1.1 {status} ")
    for name, value in STRICT.items():
        assert f"\r\n{name}: {value}\r\n" in head


async def test_the_documentation_is_local(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        page = (await rig.client.get("/docs")).text
        addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert addresses
        assert not [address for address in addresses if "//" in address]
        for address in addresses:
            answer = await rig.client.get(f"/{address}")
            assert answer.status_code == 200
            assert answer.content
        assert (await rig.client.get("/redoc")).status_code == 404
