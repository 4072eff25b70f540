"""Forms and documents so large that they are taken apart in steps, over a real socket."""

import asyncio
import base64
import json
from pathlib import Path

import httpx
import pytest

from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio

MEBIBYTE = 1024 * 1024
SIZES = (3 * MEBIBYTE, 10, 5 * MEBIBYTE, 1000)
FORM = "multipart/form-data; boundary=b"
HEAD = b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'


def images(first: int) -> list[bytes]:
    """Return large and small images of several classes."""
    return [f"class:{(first + number) % 4}".encode().ljust(size) for number, size in enumerate(SIZES)]


def as_json(contents: list[bytes]) -> bytes:
    """Return them as a JSON request."""
    return json.dumps({"instances": [{"b64": base64.b64encode(each).decode()} for each in contents]}).encode()


def as_form(contents: list[bytes]) -> bytes:
    """Return them as a form."""
    return b"".join(HEAD + each + b"\r\n" for each in contents) + b"--b--\r\n"


async def ask(rig: Rig, first: int) -> list[str]:
    """Send the images and return the classes."""
    body, kind = (as_form(images(first)), FORM) if first % 2 else (as_json(images(first)), "application/json")
    answer: httpx.Response = await rig.predict(body, headers={"Content-Type": kind})
    assert answer.status_code == 200, answer.text
    return [each["label"] for each in answer.json()["predictions"]]


async def test_each_image_is_answered_in_its_place(tmp_path: Path) -> None:
    labels = ["zero", "one", "two", "three"]
    async with running_gateway(tmp_path) as rig:
        found = await asyncio.gather(*(ask(rig, first) for first in range(6)))
        assert found == [[labels[(first + number) % 4] for number in range(len(SIZES))] for first in range(6)]


async def test_a_client_that_leaves_meanwhile_leaves_nothing_behind(tmp_path: Path) -> None:
    body = as_json([b"class:1".ljust(20 * MEBIBYTE)])
    head = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    # Room for one body of a caller: what it took has to come back.
    async with running_gateway(tmp_path, max_buffered_bytes=64 * MEBIBYTE) as rig:
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
            writer.write(head % len(body) + body)
            async with asyncio.timeout(20):
                await writer.drain()
            writer.transport.abort()
        await rig.until("torchgate_http_requests_in_progress", 0, route="/predict")
        answer = await rig.predict(body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200
        broken = body[:-10] + b"!" + body[-9:]
        answer = await rig.predict(broken, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "base64_invalid")
