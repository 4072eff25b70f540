"""What a head may ask for and hold, and what becomes of the requests around one that is refused."""

import asyncio
from pathlib import Path

import pytest

from tests.gateway import running_gateway
from tests.service.http.server.test_protocol import answer_to

pytestmark = pytest.mark.anyio

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n"
LAST = b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
IMAGE = b"class:2"  # parsed as a request it would be a 400
WISH = b"POST /predict HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 7\r\n\r\n"
CHUNKED_WISH = WISH.replace(b"Content-Length: 7", b"Transfer-Encoding: chunked") + b"7\r\nclass:2\r\n0\r\n\r\n"
WHOLE_WISH = WISH + IMAGE
END = len(WISH)


@pytest.mark.parametrize(
    "pieces",
    [
        [WHOLE_WISH + LAST],
        [WHOLE_WISH[:40], WHOLE_WISH[40:] + LAST],
        [WHOLE_WISH[: END - 1], WHOLE_WISH[END - 1 :], LAST],
        [WISH, IMAGE, LAST],
        [HEALTH + WHOLE_WISH + LAST],
        [HEALTH + WHOLE_WISH * 3 + b"\r\n" * 3000, LAST],
        [CHUNKED_WISH + LAST],
        [HEALTH + CHUNKED_WISH[:60], CHUNKED_WISH[60:] + LAST],
    ],
)
async def test_the_body_behind_a_wish_to_upgrade_is_no_request(tmp_path: Path, pieces: list[bytes]) -> None:
    async with running_gateway(tmp_path) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.02)  # so that they come one by one; together they would do as well
        async with asyncio.timeout(15):
            said = await reader.read()
        writer.close()
        num_wishes = b"".join(pieces).count(b"Upgrade: h2c")
        assert rig.backend.batches == [[IMAGE]] * num_wishes
        assert said.count(b"HTTP/1.1 200 ") == num_wishes + b"".join(pieces).count(b"/healthz")
        assert said.count(b"HTTP/1.1 ") == said.count(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /%s HTTP/1.1\r\nHost: t\r\n\r\n" % (b"a" * 8192), 414),
        (b"GET /%s HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n" % (b"a" * 8191), 404),
        (b"POST /predict?model=%s HTTP/1.1\r\nHost: t\r\nContent-Length: 7\r\n\r\nclass:1" % (b"a" * 60_000), 414),
        (b"GET http:// HTTP/1.1\r\nHost: t\r\n\r\n", 400),
        (b"GET http://t:99999999/ HTTP/1.1\r\nHost: t\r\n\r\n", 400),
        (b"GET http://t HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", 307),  # the page is elsewhere
        (b"GET http://t/healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: t\r\nHost: t\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\nHost: t\r\nHost: t\r\n\r\n", 400),
        (b"GET /healthz HTTP/2.0\r\nHost: t\r\n\r\n", 505),
        (b"POST /predict HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET /healthz HTTP/1.1\r\n" + b"a:b\r\n" * 129 + b"\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\n" + b"a:b\r\n" * 30_000, 431),
        (b"GET /healthz HTTP/1.1\r\nConnection: close\r\nHost: t\r\n" + b"a:b\r\n" * 126 + b"\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: t\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (b"CONNECT t:80 HTTP/1.1\r\nHost: t\r\n\r\n", 501),
        (b"nonsense\r\n\r\n", 400),
    ],
)
@pytest.mark.parametrize("before", [0, 2])
async def test_a_refused_head_harms_no_request_before_it(
    tmp_path: Path, request_bytes: bytes, status: int, before: int
) -> None:
    async with running_gateway(tmp_path) as rig:
        said = await answer_to(rig.port, HEALTH * before + request_bytes)
        assert said.count(b"HTTP/1.1 200 ") == before + (status == 200)
        last = said[said.rindex(b"HTTP/1.1 ") :]
        assert last.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nconnection: close\r\n" in last.lower()
