"""A database that hangs: predictions and hashing go on, changes are refused in time, and all comes back by itself."""

import asyncio
import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url, select, text

from service.errors.admin import StateUnavailable
from service.persistence import registry
from service.persistence.database import MOST_CALLERS_CALLS, Database
from service.persistence.engines import postgres, threads
from service.persistence.tables import models
from tests.faults import recovery
from tests.gateway import Rig, running_gateway
from tests.postgres import hanging, running_postgres
from tests.relay import running_relay
from tests.service.two_gateways import VERSIONS, put

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the usual limits, in the same order."""
    monkeypatch.setattr(postgres, "ANSWER_SECONDS", 1.0)
    monkeypatch.setitem(postgres.DEFAULT_OPTIONS, "connect_timeout", 2)  # the least that libpq takes
    monkeypatch.setattr(threads, "ANSWER_SECONDS", 4.0)
    monkeypatch.setattr(registry, "TURN_SECONDS", 1.0)


async def until_put(rig: Rig, weights: dict[str, float]) -> None:
    async with asyncio.timeout(30):
        while (await put(rig, weights)).status_code != 200:
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("short_limits")
async def test_a_database_that_hangs_stops_changes_and_nothing_else(tmp_path: Path, server: str) -> None:
    async with running_gateway(tmp_path, VERSIONS, model_store_policy="all", database_url=server) as rig:
        await rig.until_every_version_is_ready()
        await put(rig, {"1.0": 50, "1.1": 50})
        answer = (await rig.predict(b"class:1")).json()
        assert await rig.metric("torchgate_state_database_up") == 1
        with hanging(server):
            label = {"id": answer["id"], "index": 0, "label": "one"}
            feedback = [asyncio.create_task(rig.client.post("/feedback", json=label)) for _ in range(40)]
            logs = [asyncio.create_task(rig.client.get("/models/digits/events")) for _ in range(40)]
            changes = [asyncio.create_task(put(rig, {"1.0": 100})) for _ in range(20)]
            await rig.until("torchgate_state_database_up", 0)
            for _ in range(50):
                assert (await rig.predict(b"class:1")).status_code == 200
            # The threads that hash and unpack archives are free.
            async with asyncio.timeout(2):
                await asyncio.to_thread(hashlib.sha256, b"archive")
            assert (await rig.client.get("/readyz")).status_code == 200
            async with asyncio.timeout(20):
                refused = await asyncio.gather(*changes)
                refused += await asyncio.gather(*feedback, *logs)
            assert {(each.status_code, each.json()["code"]) for each in refused} == {(503, "state_unavailable")}
            assert await rig.metric("torchgate_state_database_silence_seconds") > 0.5
            assert await rig.metric("torchgate_state_database_operations_total", outcome="failed") > 0
        with recovery("the database hangs"):
            await until_put(rig, {"1.0": 25, "1.1": 75})
        assert await rig.metric("torchgate_state_database_up") == 1
        right = await rig.client.post("/feedback", json=label)
        assert right.status_code in {200, 409}  # 409: one of those that were given up was carried out
        assert (await rig.client.get("/models/digits/events")).json()["events"][0]["after"]["weights"]["1.1"] == 75


@pytest.mark.usefixtures("short_limits")
async def test_a_network_that_swallows_everything_costs_one_connection(server: str) -> None:
    place = make_url(server)
    assert place.host is not None
    assert place.port is not None
    with running_relay(place.host, place.port) as relay:
        database = Database(place.set(port=relay.port).render_as_string(hide_password=False))
        await database.call(database.open)
        relay.swallow()
        begun = time.monotonic()
        assert await database.call(rows, database) == []  # found out by the look before, then connected anew
        assert 0.9 < time.monotonic() - begun < 8

        def in_the_middle() -> None:
            with database.reading() as connection:
                relay.swallow()
                connection.execute(select(models))

        with pytest.raises(StateUnavailable, match="has not answered within 1 s"):
            await database.call(in_the_middle)
        assert await database.call(rows, database) == []
        database.close()


def rows(database: Database) -> list[object]:
    with database.reading() as connection:
        return list(connection.execute(select(models).where(models.c.model == "none")).all())


async def test_the_server_ends_what_takes_too_long(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "STATEMENT_MS", 300)
    monkeypatch.setattr(postgres, "LOCK_MS", 100)
    database = Database(server)
    await database.call(database.open)

    def slow() -> None:
        with database.reading() as connection:
            connection.execute(text("SELECT pg_sleep(60)"))

    with pytest.raises(StateUnavailable, match="statement timeout"):
        await database.call(slow)

    def locked() -> None:
        with database.writing() as one, database.writing() as other:
            one.execute(text("LOCK TABLE torchgate_leases"))
            other.execute(text("LOCK TABLE torchgate_leases"))

    with pytest.raises(StateUnavailable, match="lock timeout"):
        await database.call(locked)
    database.close()


async def test_calls_are_bounded_in_number_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "ANSWER_SECONDS", 0.5)
    database = Database(f"sqlite:///{tmp_path / 'state.db'}")
    await database.call(database.open)
    go_on = threading.Event()
    callers = [asyncio.create_task(database.call_for_caller(go_on.wait)) for _ in range(MOST_CALLERS_CALLS)]
    await asyncio.sleep(0)  # all have called
    with pytest.raises(StateUnavailable, match=f"{MOST_CALLERS_CALLS} calls wait"):
        await database.call_for_caller(go_on.wait)
    assert await database.call(rows, database) == []  # the gateway's own calls go on
    for error in await asyncio.gather(*callers, return_exceptions=True):
        assert isinstance(error, StateUnavailable)
        assert "look before you repeat it" in str(error)
    go_on.set()
    async with asyncio.timeout(10):
        while True:
            try:
                assert await database.call_for_caller(rows, database) == []
                break
            except StateUnavailable:
                await asyncio.sleep(0.01)
    database.close()
    with pytest.raises(StateUnavailable, match="is closed"):
        await database.call(rows, database)
