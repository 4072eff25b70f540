"""Two gateways on one database agree: on traffic, on who drives a rollout, and on when a version may go."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.admin import rollout_controller
from service.errors.gateway import BackendFailed
from service.persistence import leader_lease
from tests.faults import recovery
from tests.gateway import Rig, running_gateway
from tests.postgres import postgres, running_postgres
from tests.service.two_gateways import NEW, VERSIONS, put, sqlite, traffic, two, until_weights

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite(tmp_path)
    import psycopg  # noqa: PLC0415

    url: str = request.getfixturevalue("server")
    name = f"test_{abs(hash(tmp_path))}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return url.rpartition("/")[0] + f"/{name}"


async def test_both_see_a_change_and_route_alike(tmp_path: Path, database: str) -> None:
    async with two(tmp_path, database) as (first, second, _):
        for percent in (10, 75):
            await put(first, {"1.0": 100 - percent, "1.1": percent})
            await until_weights(second, {"1.0": 100 - percent, "1.1": percent})
        for number in range(50):
            key = {"X-Routing-Key": f"user-{number}"}
            versions = [(await rig.predict(b"class:1", headers=key)).json()["version"] for rig in (first, second)]
            assert versions[0] == versions[1]


async def test_concurrent_changes_are_never_lost(tmp_path: Path, database: str) -> None:
    async with two(tmp_path, database) as (first, second, _):

        async def label(rig: Rig, name: str) -> int:
            """Set a label as a client does that reads, changes, and begins anew if somebody was faster."""
            num_stale = 0
            while True:
                etag = (await rig.client.get("/models/digits/traffic")).headers["etag"]
                path, headers = f"/models/digits/labels/{name}", {"If-Match": etag}
                answer = await rig.client.put(path, json={"version": "1.0"}, headers=headers)
                if answer.status_code == 200:
                    return num_stale
                assert (answer.status_code, answer.json()["code"]) == (412, "revision_stale")
                num_stale += 1
                await asyncio.sleep(0.02)

        names = [(rig, f"{side}{n}") for n in range(8) for rig, side in ((first, "a"), (second, "b"))]
        async with asyncio.timeout(30):
            assert sum(await asyncio.gather(*(label(rig, name) for rig, name in names))) > 0
            while set((state := await traffic(first))["labels"]) != {name for _, name in names}:
                await asyncio.sleep(0.01)
        events = (await first.client.get("/models/digits/events", params={"limit": 1000})).json()["events"]
        done = [event["after"]["revision"] for event in events if event["outcome"] == "done"]
        assert done == list(range(state["revision"], 0, -1))


async def test_events_tell_of_whatever_callers_write(tmp_path: Path, database: str) -> None:
    """Half a character was an unexpected error; of NUL, PostgreSQL refused the event, and the change with it."""
    async with running_gateway(tmp_path, database_url=database) as rig:
        await rig.until_every_version_is_ready()
        headers = {"If-Match": "*", "Content-Type": "application/json"}
        for file in (r"\ud800.mar", r"\u0000.mar"):
            body = f'{{"file": "{file}"}}'
            answer = await rig.client.post("/models/digits/versions?reason=a%00b", content=body, headers=headers)
            assert answer.json()["code"] == "archive_not_found"
        weights = {"weights": {"1.0-int8-dynamic": 100}}
        answer = await rig.client.put("/models/digits/traffic?reason=%00", json=weights, headers=headers)
        assert answer.status_code == 200
        found = (await rig.client.get("/models/digits/events?limit=3")).json()["events"]
        assert [each["subject"] for each in found] == ["", r"\x00.mar", r"\ud800.mar"]
        assert [each["reason"] for each in found] == [r"\x00", r"a\x00b", r"a\x00b"]


async def test_a_version_goes_when_neither_has_anything_in_flight(
    tmp_path: Path, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with two(tmp_path, database) as (first, second, _):
        second.backend.hold()
        running = asyncio.create_task(second.predict(b"class:1", params={"version": "1.1"}))
        await second.backend.batches_arrived(1)
        going = asyncio.create_task(first.client.delete("/models/digits/versions/1.1"))
        await second.until_state("1.1", "draining")
        caplog.clear()
        async with asyncio.timeout(10):
            while caplog.text.count("digits 1.1 is still in use by") < 5:  # the first one looks, and waits
                await asyncio.sleep(0.01)
        assert NEW in first.control.registered
        second.backend.release()
        assert (await running).status_code == 200
        assert (await going).status_code == 204
        assert NEW not in first.control.registered


async def test_one_drives_a_rollout_on_the_counts_of_both(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_controller, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(leader_lease, "RENEW_SECONDS", 0.02)
    monkeypatch.setattr(leader_lease, "LEASE_SECONDS", 0.5)
    async with two(tmp_path, database) as (first, second, _):
        second.backend.failing[NEW] = BackendFailed("the handler raised")  # which the first one does not see
        body = {"version": "1.1", "steps": [50, 100], "min_requests": 100_000, "shadow_percent": 0}
        assert (await first.client.post("/models/digits/rollouts", json=body)).status_code == 201
        async with asyncio.timeout(30):
            while (await traffic(second))["weights"] != {"1.0": 100} or (await traffic(first))["revision"] < 4:
                await asyncio.gather(*(rig.predict(b"class:1") for rig in (first, second)))
        await until_weights(first, {"1.0": 100})
        events = (await first.client.get("/models/digits/events")).json()["events"]
        assert Counter(event["action"] for event in events)["roll_back"] == 1
        assert "guard errors" in events[0]["detail"]


async def test_another_one_drives_when_the_driver_is_gone(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_controller, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(leader_lease, "RENEW_SECONDS", 0.02)
    monkeypatch.setattr(leader_lease, "LEASE_SECONDS", 0.2)
    async with two(tmp_path, database) as (first, second, stack):
        body = {"version": "1.1", "steps": [50, 100], "min_requests": 20, "min_seconds": 0.5, "shadow_percent": 0}
        assert (await second.client.post("/models/digits/rollouts", json=body)).status_code == 201
        await stack.aclose()  # the second one ends; whichever drove, one is left
        async with asyncio.timeout(30):
            while (await traffic(first))["weights"] != {"1.1": 100}:
                await first.predict(b"class:1")


async def test_a_database_that_goes_away_stops_changes_and_nothing_else(tmp_path: Path) -> None:
    with postgres() as server:
        options: dict[str, Any] = {"model_store_policy": "all", "database_url": server.url}
        async with running_gateway(tmp_path, VERSIONS, **options) as rig:
            await put(rig, {"1.0": 50, "1.1": 50})
            await asyncio.to_thread(server.stop)
            answers = [await rig.predict(b"class:1") for _ in range(100)]
            assert Counter(answer.json()["version"] for answer in answers) == {"1.0": 50, "1.1": 50}
            refused = await put(rig, {"1.0": 100})
            assert (refused.status_code, refused.json()["code"]) == (503, "state_unavailable")
            assert (await rig.client.get("/readyz")).status_code == 200
            await asyncio.to_thread(server.start)
            assert (await traffic(rig))["weights"] == {"1.0": 50, "1.1": 50}
            with recovery("the database is back"):
                async with asyncio.timeout(30):
                    while (await put(rig, {"1.0": 100})).status_code != 200:
                        await asyncio.sleep(0.05)
            assert (await rig.client.get("/models/digits/events")).json()["events"][0]["before"]["weights"]["1.1"] == 50
