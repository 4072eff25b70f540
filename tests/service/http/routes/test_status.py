"""The status page's events, and what they cost: no browser needed."""

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import re
import socket
from collections.abc import AsyncIterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.admin.status.page import assemble
from tests.gateway import NO_CREDENTIALS, GatewayProcess, Rig, running_gateway
from tests.service.problems import problem_of
from tests.service.two_gateways import sqlite, two
from tests.torchserve_process import ROOT

pytestmark = pytest.mark.anyio

MOST_LISTENERS = 32


@contextlib.asynccontextmanager
async def events(client: httpx.AsyncClient) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """Listen; give each event's name and data as they come."""
    async with asyncio.timeout(20), client.stream("GET", "/status/events") as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield _parsed(answer)


async def _parsed(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in answer.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


async def until_look(told: AsyncIterator[tuple[str, Any]], key: str, least: float) -> list[dict[str, Any]]:
    """Return the points of all looks until their buckets under `key` hold so many."""
    points: list[dict[str, Any]] = []
    async for name, data in told:
        if name == "look":
            points.append(data["point"])
            if sum(sum(point[key]) for point in points) >= least:
                return points
    raise AssertionError(f"the events ended after {points}")


def num_counted(points: list[dict[str, Any]], key: str, name: str) -> float:
    """Return how many requests the points' rates, each per second since the point before, amount to."""
    pairs = itertools.pairwise(points)
    return float(sum(point[key].get(name, 0) * (point["time"] - before["time"]) for before, point in pairs))


async def test_a_listener_hears_what_was_served(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig, events(rig.client) as told:
        assert await anext(told) == ("history", [])
        name, first = await anext(told)
        assert name == "look"
        assert first["now"]["gateway"]["objective_ms"] == 100
        assert [version["name"] for version in first["now"]["versions"]] == ["digits 1.0", "digits 1.0-int8-dynamic"]
        assert first["point"]["rates"] == {}
        for _ in range(3):
            assert (await rig.predict(b"class:1")).status_code == 200
        assert (await rig.predict(b"reject:image_truncated")).status_code == 400
        points = await until_look(told, "sizes", 4)
        assert sum(sum(point["sizes"]) for point in points) == 4
        assert sum(sum(point["heat"]) for point in points) == 3  # answered ones alone
        points.insert(0, first["point"])
        assert num_counted(points, "rates", "ok") == pytest.approx(3, rel=0.05)
        assert num_counted(points, "rates", "client_error") == pytest.approx(1, rel=0.05)
        assert num_counted(points, "versions", "digits 1.0") == pytest.approx(4, rel=0.05)
        p50, p95, p99 = points[-1]["quantiles"]
        assert 0 < p50 <= p95 <= p99


async def test_how_versions_are_is_told(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        # Seen in the round after the load.
        await rig.until("torchgate_backend_workers", 1, version="1.0", state="ready")
        slot = await rig.fill_the_slot()
        waiting = asyncio.create_task(rig.predict(b"class:2"))
        await rig.until_queued(1)
        async with events(rig.client) as told:
            await anext(told)
            _, look = await anext(told)
        rig.backend.release()
        assert [(await task).status_code for task in (slot, waiting)] == [200, 200]
        assert look["point"]["waiting"] == 1
        shown, other = look["now"]["versions"]
        assert (shown["weight"], shown["waiting"], shown["in_flight"], shown["workers"]) == (100, 1, 1, {"ready": 1})
        assert (other["weight"], other["waiting"], other["state"], other["drift"]) == (0, 0, "ready", {})
        assert look["now"]["rollouts"] == []


async def test_a_rollout_in_progress_is_told(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (("digits", "1.0", "fp32"), ("digits", "1.0", "int8-static"))) as rig:
        await rig.until_every_version_is_ready()
        asked = {"version": "1.0-int8-static", "steps": [5, 100], "min_seconds": 60}
        begun = await rig.client.post("/models/digits/rollouts", json=asked)
        assert begun.status_code in {200, 201}, begun.text
        async with events(rig.client) as told:
            await anext(told)
            _, look = await anext(told)
        (rollout,) = look["now"]["rollouts"]
        assert (rollout["stable"], rollout["version"], rollout["state"]) == ("1.0", "1.0-int8-static", "running")
        assert (rollout["step"], rollout["steps"]) == (0, [5, 100])
        assert {each["version"]: each["weight"] for each in look["now"]["versions"]} == {
            "1.0": 95,
            "1.0-int8-static": 5,
        }


async def test_who_comes_later_gets_what_was_before(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        async with events(rig.client) as told:
            await anext(told)
            await rig.predict(b"class:1")
            seen = await until_look(told, "heat", 0)
            _, look = await anext(told)
            seen.append(look["point"])
        async with events(rig.client) as told:
            assert await anext(told) == ("history", seen)


async def test_only_so_many_may_listen_and_no_caller_takes_all_places(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        async with contextlib.AsyncExitStack() as stack:

            async def listen(client: httpx.AsyncClient, num_places: int) -> dict[str, Any]:
                """Take so many places; return why there is not one more."""
                listening = [await stack.enter_async_context(events(client)) for _ in range(num_places)]
                for told in listening:
                    assert (await anext(told))[0] == "history"
                stack.callback(listening.clear)  # a stream that nobody holds is closed
                refused = await client.get("/status/events")
                assert refused.headers["retry-after"] == "10"
                return problem_of(refused, 503, "listeners_full")

            detail = (await listen(rig.client, MOST_LISTENERS // 2))["detail"]
            assert "32 places" in detail
            assert "16 are free and 16 yours" in detail
            assert (await rig.client.get("/status")).status_code == 200
            # The holder of the admin token has left places for strangers at its address, and these for other addresses.
            for address, num_places in (("127.0.0.1", 8), ("127.0.0.2", 4)):
                transport = httpx.AsyncHTTPTransport(local_address=address)
                stranger = httpx.AsyncClient(base_url=rig.url, transport=transport)
                await listen(await stack.enter_async_context(stranger), num_places)
        await _until_heard(rig)


async def _until_heard(rig: Rig) -> None:
    """Return once a listener is taken again: those that left are gone when their connections are."""
    async with asyncio.timeout(10):
        while True:
            async with rig.client.stream("GET", "/status/events") as answer:
                if answer.status_code == 200:
                    return


async def test_listeners_do_not_hold_up_the_end(tmp_path: Path) -> None:
    # A stop that waited for the listener would outlast the time that events() gives it.
    with GatewayProcess(TORCHGATE_MODEL_STORE=str(tmp_path), TORCHGATE_DRAIN_SECONDS="60") as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client, events(client) as told:
            await anext(told)
            await anext(told)
            stopping = asyncio.create_task(asyncio.to_thread(gateway.stop))
            assert [name async for name, _ in told if name != "look"] == []  # it ends, and in good order
            await stopping
        assert not [record for record in gateway.records() if record["level"] in {"WARNING", "ERROR"}]


async def test_the_page_learns_whether_a_token_may_change(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        before = (await rig.client.get("/models/digits/events")).json()
        assert (await rig.client.get("/status/sign-in")).status_code == 204
        problem_of(await rig.client.get("/status/sign-in", headers=NO_CREDENTIALS), 401, "credentials_missing")
        guess = {"Authorization": "Bearer guess"}
        problem_of(await rig.client.get("/status/sign-in", headers=guess), 403, "credentials_wrong")
        assert (await rig.client.get("/models/digits/events")).json() == before  # it leaves no trace in the log
        assert "/status/sign-in" not in (await rig.client.get("/openapi.json")).json()["paths"]


async def test_only_readers_get_an_image_of_the_self_check(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        image = await rig.client.get("/status/examples/digits/1.0")
        assert (image.content, image.headers["content-type"]) == (b"class:1", "application/octet-stream")
        stranger = await rig.client.get("/status/examples/digits/1.0", headers=NO_CREDENTIALS)
        problem_of(stranger, 401, "credentials_missing")
        problem_of(await rig.client.get("/status/examples/digits/7.0"), 404, "version_not_found")


async def test_the_figures_name_their_process_and_the_others(tmp_path: Path) -> None:
    async with two(tmp_path, sqlite(tmp_path)) as (first, second, _):
        names = []
        for rig in (first, second):
            async with events(rig.client) as told:
                async for name, data in told:
                    if name == "look" and data["now"]["gateway"]["others"]:
                        break
            names.append((data["now"]["gateway"]["name"], data["now"]["gateway"]["others"]))
        assert names == [(names[0][0], [names[1][0]]), (names[1][0], [names[0][0]])]
        assert names[0][0].startswith(f"{socket.gethostname()}-")
        async with httpx.AsyncClient(base_url=first.url, trust_env=False) as stranger, events(stranger) as told:
            await anext(told)
            _, look = await anext(told)
        shown = look["now"]["gateway"]
        assert [shown["name"], *shown["others"]] == [name.rpartition("-")[2] for name, _ in names]  # without their host


async def test_the_page_is_all_there_is(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, versions=(), wait_until_ready=False) as rig:
        led = await rig.client.get("/")
        assert (led.status_code, led.headers["location"]) == (307, "status")
        page = await rig.client.get("/status")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    allowed = page.headers["content-security-policy"]
    assert allowed.startswith("default-src 'none'; connect-src 'self';")
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in allowed
    # Only relative addresses: the page holds behind a prefix, and asks nobody else.
    assert not re.findall(r"""(?:href|src|action)=["'](?!data:|#)(?:[a-z]+:|/)""", page.text)
    assert not re.findall(r"""(?:fetch|EventSource|import)\(["'`](?:[a-z]+:|/)""", page.text)
    assert 'data-asks-for-key="false"' in page.text


def test_the_page_has_a_field_for_a_key_where_one_is_asked_for() -> None:
    assert b'data-asks-for-key="true"' in assemble(asks_for_key=True)[0]


def test_the_distribution_has_every_file_of_the_page() -> None:
    (line,) = re.findall(r'^service = (\[".*"\])$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    folder = ROOT / "service"
    files = [
        p.relative_to(folder).as_posix() for p in (folder / "admin" / "status").iterdir() if p.suffix not in {".py", ""}
    ]
    assert len(files) >= 3
    assert [file for file in files if not any(fnmatch(file, pattern) for pattern in json.loads(line))] == []
