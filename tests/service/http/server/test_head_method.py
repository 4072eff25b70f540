"""HEAD: what GET would answer, without the body."""

from pathlib import Path

import pytest

from tests.gateway import running_gateway

pytestmark = pytest.mark.anyio

PATHS = (
    "/healthz",
    "/readyz",
    "/models",
    "/models/digits",
    "/status",
    "/docs",
    "/docs/swagger-ui.css",
    "/openapi.json",
)


async def test_head_is_get_without_its_body(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        for path in (*PATHS, "/nowhere", "/models/nobody"):
            answer, wanted = await rig.client.head(path), await rig.client.get(path)
            assert answer.status_code == wanted.status_code, path
            assert answer.content == b""
            left_out = {"date", "x-request-id"} | ({"content-length"} if wanted.is_error else set())
            for name in wanted.headers.keys() - left_out:
                assert answer.headers[name] == wanted.headers[name], (path, name)
        assert (await rig.client.head("/metrics")).status_code == 200
        assert await rig.metric("torchgate_http_requests_total", method="HEAD", route="/healthz") == 1


async def test_the_event_stream_ends_with_its_head(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        answer = await rig.client.head("/status/events")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        await rig.until("torchgate_http_requests_in_progress", 1, route="other")  # the one that asks


async def test_other_methods_are_told_what_is_allowed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        answer = await rig.client.delete("/healthz")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"
        answer = await rig.client.head("/predict")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "POST"
