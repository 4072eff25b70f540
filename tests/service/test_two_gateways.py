"""Two gateways on one database agree: on traffic, on who drives a rollout, and on when a version may go."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.admin import rollout_controller
from service.domain.backend import Target
from service.errors.gateway import BackendFailed
from service.persistence import leader_lease
from tests.fake_backend import FakeControl
from tests.gateway import Rig, running_gateway
from tests.postgres import running_postgres
from tests.stores import make_store

pytestmark = pytest.mark.anyio

VERSIONS = (("digits", "1.1", "fp32"), ("digits", "1.0", "fp32"))
NEW = Target("digits", "1.1")


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


@asynccontextmanager
async def two(tmp_path: Path, database: str, **options: Any) -> AsyncIterator[tuple[Rig, Rig, AsyncExitStack]]:
    """Run two gateways before one model server, with all the traffic at 1.0; the second's exit is the caller's."""
    store = tmp_path / "store"
    control = FakeControl(make_store(store, VERSIONS))
    options = {"model_store": store, "model_store_policy": "all", "database_url": database, **options}
    if options["model_store_policy"] == "specific":
        options["wait_until_ready"] = False
    async with running_gateway(tmp_path, (), control=control, **options) as first, AsyncExitStack() as stack:
        second = await stack.enter_async_context(running_gateway(tmp_path, (), control=control, **options))
        if options["model_store_policy"] == "specific":
            for rig in (first, second):
                await rig.until_reason("TORCHGATE_MODEL_STORE_POLICY")
            body = {"file": "digits-1.0.mar"}
            assert (await first.client.post("/models/digits/versions", json=body)).status_code == 201
            for rig in (first, second):
                await rig.until_state("1.0", "ready")
        for rig in (first, second):
            await rig.until_every_version_is_ready()
        await put(first, {"1.0": 100})
        await until_weights(second, {"1.0": 100})
        yield first, second, stack


async def put(rig: Rig, weights: dict[str, float], based_on: str = "*") -> httpx.Response:
    return await rig.client.put("/models/digits/traffic", json={"weights": weights}, headers={"If-Match": based_on})


async def traffic(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = (await rig.client.get("/models/digits/traffic")).json()
    return found


async def until_weights(rig: Rig, weights: dict[str, float]) -> None:
    async with asyncio.timeout(10):
        while (await traffic(rig))["weights"] != weights:
            await asyncio.sleep(0.01)


async def test_both_see_a_change_within_a_second_and_route_alike(tmp_path: Path, database: str) -> None:
    async with two(tmp_path, database) as (first, second, _):
        delays = []
        for percent in (10, 25, 50, 75):
            started = time.monotonic()
            await put(first, {"1.0": 100 - percent, "1.1": percent})
            await until_weights(second, {"1.0": 100 - percent, "1.1": percent})
            delays.append(time.monotonic() - started)
        # The poll's pause is half a second; a busy machine may take longer once.
        assert sorted(delays)[1] < 1
        for number in range(50):
            key = {"X-Routing-Key": f"user-{number}"}
            versions = [(await rig.predict(b"class:1", headers=key)).json()["version"] for rig in (first, second)]
            assert versions[0] == versions[1]


async def test_concurrent_changes_are_never_lost(tmp_path: Path, database: str) -> None:
    async with two(tmp_path, database) as (first, second, _):

        async def label(rig: Rig, name: str) -> int:
            """Set a label as a client does that reads, changes, and begins anew if somebody was faster."""
            for attempt in range(100):
                etag = (await rig.client.get("/models/digits/traffic")).headers["etag"]
                path, headers = f"/models/digits/labels/{name}", {"If-Match": etag}
                answer = await rig.client.put(path, json={"version": "1.0"}, headers=headers)
                if answer.status_code == 200:
                    return attempt
                assert (answer.status_code, answer.json()["code"]) == (412, "revision_stale")
                await asyncio.sleep(0.02)
            raise AssertionError("never got through")

        names = [(rig, f"{side}{n}") for n in range(8) for rig, side in ((first, "a"), (second, "b"))]
        attempts = await asyncio.gather(*(label(rig, name) for rig, name in names))
        assert sum(attempts) > 0
        async with asyncio.timeout(10):
            while set((state := await traffic(first))["labels"]) != {name for _, name in names}:
                await asyncio.sleep(0.01)
        events = (await first.client.get("/models/digits/events", params={"limit": 1000})).json()["events"]
        done = [event["after"]["revision"] for event in events if event["outcome"] == "done"]
        assert done == list(range(state["revision"], 0, -1))


async def test_a_version_goes_when_neither_has_anything_in_flight(tmp_path: Path, database: str) -> None:
    async with two(tmp_path, database) as (first, second, _):
        second.backend.hold()
        running = asyncio.create_task(second.predict(b"class:1", params={"version": "1.1"}))
        await second.backend.batches_arrived(1)
        going = asyncio.create_task(first.client.delete("/models/digits/versions/1.1"))
        await second.until_state("1.1", "draining")
        await asyncio.sleep(0.5)  # time enough for the first one to do the wrong thing
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
    with running_postgres() as url:
        stopped = running_gateway(tmp_path, VERSIONS, model_store_policy="all", database_url=url)
        rig = await stopped.__aenter__()
        await put(rig, {"1.0": 50, "1.1": 50})
    try:
        answers = [await rig.predict(b"class:1") for _ in range(100)]
        assert Counter(answer.json()["version"] for answer in answers) == {"1.0": 50, "1.1": 50}
        refused = await put(rig, {"1.0": 100})
        assert (refused.status_code, refused.json()["code"]) == (503, "state_unavailable")
        assert (await rig.client.get("/readyz")).status_code == 200
    finally:
        await stopped.__aexit__(None, None, None)


async def test_a_scale_is_not_undone_by_the_other_gateway(tmp_path: Path) -> None:
    async with two(tmp_path, sqlite(tmp_path)) as rigs:
        for number, rig in enumerate(rigs[:2]):
            finished = rig.control.hold(NEW)
            path = "/models/digits/versions/1.1"
            scaling = asyncio.create_task(rig.client.patch(path, json={"num_workers": 3 + number}))
            await until_registered(rig.control, 3 + number)
            await until_surveyed(rig.control, 20)
            assert rig.control.registered[NEW] == 3 + number
            finished.set()
            assert (await scaling).json()["num_workers"] == 3 + number
            await until_surveyed(rig.control, 20)
            assert rig.control.calls.count(("scale", NEW)) == 1 + number


async def test_a_repeated_register_leaves_the_version_where_it_is(tmp_path: Path) -> None:
    async with two(tmp_path, sqlite(tmp_path), model_store_policy="specific") as (
        first,
        second,
        _,
    ):
        finished, body = first.control.hold(NEW), {"file": "digits-1.1.mar"}
        registering = asyncio.create_task(first.client.post("/models/digits/versions", json=body))
        await until_registered(first.control, 1)
        repeated = asyncio.create_task(second.client.post("/models/digits/versions", json=body))
        await until_surveyed(first.control, 20)
        finished.set()
        assert {(await registering).status_code, (await repeated).status_code} == {201, 409}
        assert ("unload", NEW) not in first.control.calls
        await second.until_state("1.1", "ready")


async def test_a_load_that_lasts_long_is_waited_for(tmp_path: Path) -> None:
    store = tmp_path / "store"
    control = FakeControl(make_store(store, VERSIONS[:1]))
    finished = control.hold(NEW)
    options: dict[str, Any] = {"model_store": store, "database_url": sqlite(tmp_path), "wait_until_ready": False}
    async with (
        running_gateway(tmp_path, (), control=control, **options) as first,
        running_gateway(tmp_path, (), control=control, **options) as second,
    ):
        await until_registered(control, 1)
        started = time.monotonic()
        await until(lambda: time.monotonic() > started + 1)  # many looks of both
        finished.set()
        for rig in (first, second):
            await rig.until_ready()
        assert control.calls == [("load", NEW)]


async def test_a_load_that_fails_is_refused_by_whichever_gateway_was_asked(tmp_path: Path) -> None:
    async with two(tmp_path, sqlite(tmp_path), model_store_policy="specific") as rigs:
        for rig in rigs[:2]:
            rig.control.load_fails_with = BackendFailed("HTTP 500: workers died")
            answer = await rig.client.post("/models/digits/versions", json={"file": "digits-1.1.mar"})
            assert (answer.status_code, answer.json()["code"]) == (422, "archive_refused")
            assert "workers died" in answer.json()["detail"]
            await until_versions(rigs[:2], {"1.0": "ready"})


async def test_one_gateway_alone_changes_the_model_server(tmp_path: Path) -> None:
    async with two(tmp_path, sqlite(tmp_path)) as (first, second, stack):
        assert len(first.control.calls) == 2
        first.control.registered.clear()  # the server restarts
        for rig in (first, second):
            await until_versions([rig], {"1.0": "ready", "1.1": "ready"}, first.control, num_loads=4)
        assert Counter(first.control.calls) == {("load", NEW): 2, ("load", Target("digits", "1.0")): 2}
        await stack.aclose()
        assert (await first.client.patch("/models/digits/versions/1.1", json={"num_workers": 2})).status_code == 200


def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shared.db'}"


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)


async def until_registered(control: FakeControl, num_workers: int) -> None:
    await until(lambda: control.registered.get(NEW) == num_workers)


async def until_surveyed(control: FakeControl, num_times: int) -> None:
    """Return when the gateways have looked at the model server so many times more."""
    num_surveys = control.num_surveys + num_times
    await until(lambda: control.num_surveys >= num_surveys)


async def until_versions(
    rigs: Sequence[Rig], states: dict[str, str], control: FakeControl | None = None, num_loads: int = 0
) -> None:
    async with asyncio.timeout(10):
        for rig in rigs:
            while await rig.states() != states or (
                control is not None and [name for name, _ in control.calls].count("load") < num_loads
            ):
                await asyncio.sleep(0.005)


async def test_gateways_of_two_model_servers_each_load_their_own(tmp_path: Path) -> None:
    store = tmp_path / "store"
    controls = [FakeControl(make_store(store, VERSIONS)) for _ in range(2)]
    options: dict[str, Any] = {"model_store": store, "model_store_policy": "all"}
    async with (
        running_gateway(tmp_path, (), control=controls[0], **options) as one,
        running_gateway(tmp_path, (), control=controls[1], torchserve_management_port=9081, **options) as other,
    ):
        for rig in (one, other):
            await rig.until_every_version_is_ready()
