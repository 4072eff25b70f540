"""A database of an older release is upgraded with all that is in it; one of a newer release is refused."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from service.config.settings import Settings
from service.errors.admin import StateUnavailable
from service.persistence import migrations
from service.persistence.database import Database
from service.persistence.engines import engine as engines
from service.persistence.engines.place import require_place
from service.persistence.migrations import upgrade
from service.persistence.migrations.revisions import CURRENT, REVISIONS
from service.persistence.tables import revisions, tables
from tests.gateway import running_gateway
from tests.postgres import running_postgres

pytestmark = pytest.mark.anyio

RELEASED = Path(__file__).parent / "released"
# Of an answer with two images, signed with the key in these databases; the first one has its label.
OLD_ID = "692481c891b72265b1f564696769747300312e30000002000326af7eef1c162f8fc016f8f7"
VERSIONS = (("digits", "1.2", "fp32"), ("digits", "1.1", "fp32"), ("digits", "1.0", "fp32"))

Made = Callable[[str], str]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """Return what makes a database from SQL and returns its URL."""

    def in_sqlite(sql: str) -> str:
        with closing(sqlite3.connect(tmp_path / "released.db")) as connection:
            connection.executescript(sql)
        return f"sqlite:///{tmp_path / 'released.db'}"

    def in_postgres(sql: str) -> str:
        import psycopg  # noqa: PLC0415

        server, name = request.getfixturevalue("server"), f"test_{abs(hash(tmp_path))}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url: str = server.rpartition("/")[0] + f"/{name}"
        if sql:
            with psycopg.connect(url) as connection:
                connection.execute(sql.encode())
        return url

    return in_sqlite if request.param == "sqlite" else in_postgres


@pytest.fixture
def released(made: Made, request: pytest.FixtureRequest) -> str:
    """Return the URL of a database as commit 52282d2 left it."""
    kind = request.node.callspec.params["made"]
    return made((RELEASED / f"52282d2.{kind}.sql").read_text())


async def test_everything_in_an_older_database_is_there_after_the_upgrade(tmp_path: Path, released: str) -> None:
    options: dict[str, Any] = {"model_store_policy": "all", "database_url": released, "feedback_seconds": 1e9}
    async with running_gateway(tmp_path, VERSIONS, **options) as rig:
        await rig.until_every_version_is_ready()
        traffic = (await rig.client.get("/models/digits/traffic")).json()
        assert traffic["weights"] == {"1.0": 95, "1.2": 5}
        assert (traffic["sticky_header"], traffic["shadows"], traffic["labels"]) == (
            "x-user",
            {"1.2": 5},
            {"canary": "1.2"},
        )
        versions = {each["version"]: each for each in (await rig.client.get("/models/digits")).json()["versions"]}
        assert versions["1.2"]["num_workers"] == 3
        rollouts = (await rig.client.get("/models/digits/rollouts")).json()["rollouts"]
        assert [(each["id"], each["version"], each["state"]) for each in rollouts] == [
            (2, "1.2", "running"),
            (1, "1.1", "rolled_back"),
        ]
        assert "6 of 70 requests failed" in rollouts[1]["reason"]
        shown = (await rig.client.get("/models/digits/rollouts/2")).json()
        assert shown["step_requests"] >= 30
        (errors,) = [guard for guard in shown["guards"] if guard["name"] == "errors"]
        assert errors["num_all"] >= 30

        events = (await rig.client.get("/models/digits/events")).json()["events"]
        old = [event for event in events if event["gateway"] == "host-a1b2c3d4"]
        assert [event["action"] for event in reversed(old)] == [
            *("notice", "traffic", "traffic", "label", "scale", "traffic"),
            *("rollout", "roll_back", "rollout", "traffic"),
        ]
        assert old[0]["outcome"] == "refused"
        assert old[-3]["after"]["weights"] == {"1.0": 60, "1.1": 40}

        again = await give(rig.client, 0)
        assert (again.status_code, again.json()["code"]) == (409, "feedback_repeated")
        assert (await give(rig.client, 1)).status_code == 200  # the key that signed its id is still the key
        undone = await rig.client.post("/models/digits/rollouts/2/abort")
        assert (undone.status_code, undone.json()["state"]) == (200, "aborted")


async def give(client: httpx.AsyncClient, index: int) -> httpx.Response:
    return await client.post("/feedback", json={"id": OLD_ID, "index": index, "label": "three"})


def test_two_gateways_that_start_at_once_upgrade_it_once(released: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    databases = [Database(released) for _ in range(4)]
    both = threading.Barrier(len(databases))
    faults: list[Exception] = []

    def start(database: Database) -> None:
        both.wait(10)
        try:
            database.open()
        except StateUnavailable as error:
            faults.append(error)

    threads = [threading.Thread(target=start, args=(each,)) for each in databases]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    for database in databases:
        database.close()
    assert faults == []
    assert caplog.text.count(f"from revision 0001 to {CURRENT}") == 1


def test_a_new_database_that_another_gateway_is_making_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:  # it has no write-ahead log yet
        other.execute("BEGIN IMMEDIATE")
        database = Database(f"sqlite:///{path}")
        with ThreadPoolExecutor() as threads:
            opening = threads.submit(database.open)
            with pytest.raises(TimeoutError):
                opening.result(0.1)
            other.execute("COMMIT")
            opening.result(30)
        database.close()


def test_the_tables_are_the_same_whichever_way_they_came(made: Made, released: str) -> None:
    assert differences(released) == []


def test_the_tables_of_a_new_database_are_those_of_the_code(made: Made) -> None:
    assert differences(made("")) == []


def differences(url: str) -> list[Any]:
    """Open a database, and return where its tables are not as the code says."""
    database = Database(url)
    database.open()
    database.close()
    engine = engines.create_engine(url, 1)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "none", "compare_type": True})
        found = compare_metadata(context, tables)
        assert connection.scalar(sa.text("SELECT version FROM torchgate_schema")) == 2  # older releases refuse it
    engine.dispose()
    return list(found)


def test_every_revision_is_known() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__path__[0])))
    config.set_main_option("path_separator", "os")
    script = ScriptDirectory.from_config(config)
    assert [each.revision for each in reversed(list(script.walk_revisions()))] == list(REVISIONS)
    assert script.get_heads() == [CURRENT]


async def test_a_newer_database_is_refused_by_name(made: Made, tmp_path: Path) -> None:
    url = made("")
    database = Database(url)
    database.open()
    with database.writing() as connection:
        connection.execute(sa.update(revisions).values(version_num="0099"))
    database.close()
    async with running_gateway(tmp_path, database_url=url, wait_until_ready=False) as rig:
        problem = await rig.until_reason("revision 0099")
        assert f"this one reads up to {CURRENT}" in problem["detail"]
    if url.startswith("sqlite"):
        with pytest.raises(ValueError, match=r"TORCHGATE_DATABASE_URL=sqlite.*revision 0099"):
            require_place(Settings(database_url=url))


async def test_an_upgrade_that_takes_long_is_waited_for(
    released: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from service.persistence.engines import postgres, threads  # noqa: PLC0415

    monkeypatch.setattr(threads, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(postgres, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(postgres, "STATEMENT_MS", 300)
    upgraded = upgrade._upgrade
    go_on = threading.Event()

    def slow(connection: sa.Connection, found: str) -> None:
        go_on.wait(10)
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_sleep(0.6)"))
        upgraded(connection, found)

    monkeypatch.setattr(upgrade, "_upgrade", slow)
    database = Database(released)
    with pytest.raises(StateUnavailable, match="has not answered within"):
        await database.call(database.open)
    with pytest.raises(StateUnavailable, match="is being opened or upgraded"):
        await database.call(database.open)
    go_on.set()
    async with asyncio.timeout(20):
        while True:
            try:
                await database.call(database.open)
                break
            except StateUnavailable:
                await asyncio.sleep(0.02)
    assert differences(released) == []
    database.close()
