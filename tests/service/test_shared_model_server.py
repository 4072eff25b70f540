"""Gateways that share a model server: one alone changes it, the others follow."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from service.domain.backend import Target
from service.errors.gateway import BackendFailed
from tests.fake_backend import FakeControl
from tests.gateway import Rig, running_gateway
from tests.service.two_gateways import NEW, VERSIONS, sqlite, two
from tests.stores import make_store

pytestmark = pytest.mark.anyio


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
        await until_surveyed(control, 40)
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
