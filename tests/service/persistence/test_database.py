"""Whatever happens, no connection to the database is left open."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import event, select, text
from sqlalchemy.pool import Pool

from service.errors.admin import StateUnavailable
from service.persistence.database import Database
from service.persistence.tables import models
from service.telemetry.state_metrics import StateMetrics


@pytest.fixture
def opened() -> Iterator[set[object]]:
    """Give the connections that were opened and not closed."""
    found: set[object] = set()

    def connects(connection: object, _: object) -> None:
        found.add(connection)

    def closes(connection: object, _: object) -> None:
        found.remove(connection)

    event.listen(Pool, "connect", connects)
    event.listen(Pool, "close", closes)
    yield found
    event.remove(Pool, "connect", connects)
    event.remove(Pool, "close", closes)


def test_one_that_is_in_use_is_closed_after_its_last_answer(tmp_path: Path, opened: set[object]) -> None:
    database = Database(f"sqlite:///{tmp_path / 'state.db'}")
    database.open()
    closing = threading.Thread(target=database.close)
    with database.reading() as connection:
        closing.start()
        while not refuses(database):
            assert closing.is_alive()
        assert opened
        assert connection.execute(select(models)).all() == []
    closing.join(10)
    assert not closing.is_alive()
    assert not opened


def refuses(database: Database) -> bool:
    try:
        with database.reading():
            return False
    except StateUnavailable as error:
        return "is closed" in str(error)


def test_opening_one_that_is_open_is_no_sign_of_life(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    database = Database(f"sqlite:///{tmp_path / 'state.db'}", StateMetrics(registry))
    database.open()
    try:
        series = ("torchgate_state_database_operations_total", {"outcome": "success"})
        before = registry.get_sample_value(*series)
        database.open()
        assert registry.get_sample_value(*series) == before
    finally:
        database.close()


def test_a_database_of_another_release_is_let_go(tmp_path: Path, opened: set[object]) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    database = Database(url)
    database.open()
    with database.writing() as connection:
        connection.execute(text("UPDATE torchgate_revision SET version_num = '0099'"))
    database.close()
    with pytest.raises(StateUnavailable, match="to revision 0099, and this one reads up to"):
        Database(url).open()
    assert not opened
