"""Old events and feedback are deleted in small steps, by one gateway; the rest stays."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.config.settings import Settings
from service.persistence.database import Database
from service.persistence.leader_lease import Lease
from service.persistence.tables import events, feedback
from service.persistence.upkeep import retention
from service.persistence.upkeep.retention import DAY_SECONDS, Retention
from tests.gateway import running_gateway
from tests.postgres import running_postgres

pytestmark = pytest.mark.anyio

NOW = time.time()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Give a database with 300 events that are 500 days old and 200 of today, and as much feedback."""
    if request.param == "sqlite":
        yield from filled(f"sqlite:///{tmp_path / 'state.db'}")
        return
    with running_postgres() as url:
        yield from filled(url)


def filled(url: str) -> Iterator[Database]:
    made = Database(url)
    made.open()
    times = [NOW - 500 * DAY_SECONDS] * 300 + [NOW] * 200
    said = dict.fromkeys(("gateway", "actor", "action", "subject", "reason", "outcome", "detail"), "said")
    label = {"model": "digits", "version": "1.0", "predicted": "1", "label": "1", "is_correct": True}
    with made.writing() as connection:
        connection.execute(sa.insert(events), [{"model": "digits", "time": each, **said} for each in times])
        answers = [{"answer": f"a{n % 250}", "item": n // 250, "time": each, **label} for n, each in enumerate(times)]
        connection.execute(sa.insert(feedback), answers)
    yield made
    made.close()


def counts(database: Database) -> tuple[int, int]:
    with database.reading() as connection:
        found = [connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in (events, feedback)]
    return found[0] or 0, found[1] or 0


def pruner(database: Database, clock: float = NOW, **options: int) -> Retention:
    return Retention(database, Lease(database, "test"), Settings(**options), lambda: clock)  # type: ignore[arg-type]


def test_what_is_old_goes_in_steps_and_the_rest_stays(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STEP_ROWS", 120)
    monkeypatch.setattr(retention, "FEWEST_EVENTS", 100)
    old = pruner(database)
    assert [old.prune() for _ in range(4)] == [120, 120, 60, 0]
    assert counts(database) == (200, 200)
    with database.reading() as connection:
        assert connection.scalar(sa.select(sa.func.min(events.c.time))) == pytest.approx(NOW)
        assert connection.scalar(sa.select(sa.func.min(feedback.c.time))) == pytest.approx(NOW)


def test_a_clock_that_jumps_leaves_the_newest_events(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "FEWEST_EVENTS", 100)
    jumped = pruner(database, clock=NOW + 10_000 * DAY_SECONDS)
    while jumped.prune():
        pass
    assert counts(database)[0] == 100


def test_so_many_events_are_kept(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "FEWEST_EVENTS", 100)
    few = pruner(database, event_retention_rows=1000, event_retention_days=9999)
    few._event_rows = 150  # less than may be set
    assert few.prune() >= 300
    assert counts(database)[0] == 150


def test_feedback_stays_for_as_long_as_its_answer_takes_more(database: Database) -> None:
    keeps = pruner(database, feedback_seconds=1000 * DAY_SECONDS)
    keeps.prune()
    assert counts(database)[1] == 500


async def test_a_gateway_prunes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PAUSE_SECONDS", 0.05), ("STEP_PAUSE_SECONDS", 0.01), ("FEWEST_EVENTS", 100)):
        monkeypatch.setattr(retention, name, value)
    monkeypatch.setattr(retention, "STEP_ROWS", 40)
    url = f"sqlite:///{tmp_path / 'state.db'}"
    for _ in filled(url):
        pass
    async with running_gateway(tmp_path, database_url=url) as rig:
        while True:
            answer = await rig.client.get("/models/digits/events", params={"limit": 1000})
            if len(shown := answer.json()["events"]) <= 202:
                break
        assert shown[-1]["reason"] == "said"
