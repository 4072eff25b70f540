"""A place where no database can be is refused before the gateway listens: the setting, the place and the mend."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from service.config.settings import Settings
from service.persistence.database import Database
from service.persistence.engines.place import require_place


def refused(**options: str) -> str:
    with pytest.raises(ValueError, match="TORCHGATE_") as caught:
        require_place(Settings(**options))  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("mysql://me:hidden@host/state", ["=mysql://me:***@host/state: ", "not in mysql"]),
        ("oracle://host", ["not in oracle"]),
        (
            "postgres://me:hidden@host/state",
            ["=postgres://me:***@host/state: ", "Use sqlite:////", "postgresql://user"],
        ),
        ("postgresql+asyncpg://me:hidden@host/state", ["not in postgresql+asyncpg"]),
        ("postgresql://me@host/state?passwort=hidden", ["=postgresql://me@host/state: ", "passwort"]),
        ("me:hidden@host", ["(not shown", "not a URL"]),
        ("postgresql://me:a@hidden@host/state", ["(not shown", "Write %40"]),
        ("postgresql://me:a@b/hidden@host/state", ["(not shown", "Write %40"]),
        ("postgresql://me:hidden@host:port/state", ["(not shown", "not a URL"]),
        ("sqlite://", ["forgets every decision"]),
        ("sqlite:///:memory:", ["forgets every decision"]),
        ("sqlite://folder/file.db", ["four slashes"]),
        ("sqlite:////tmp/file.db?mode=ro", ["=sqlite:////tmp/file.db: ", "a file and nothing else"]),
    ],
)
def test_a_url_that_cannot_work(url: str, named: list[str]) -> None:
    told = refused(database_url=url)
    assert told.startswith("TORCHGATE_DATABASE_URL=")
    assert "hidden" not in told
    for part in named:
        assert part in told


def test_postgresql_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://me:hidden@host/state"
    require_place(Settings(database_url=url))  # whether a server is there, only time can tell
    monkeypatch.setattr("service.persistence.engines.place.find_spec", lambda _: None)
    assert "Install the extra 'postgres'" in refused(database_url=url)


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    place = tmp_path / "missing"
    told = refused(database_url=f"sqlite:///{place}/state.db")
    assert told.startswith(f"TORCHGATE_DATABASE_URL=sqlite:///{place}/state.db: there is no folder {place}")
    assert "Make the folder" in told
    told = refused(model_store=str(place))
    assert told.startswith(f"TORCHGATE_MODEL_STORE={place}: there is no folder {place}")
    assert "torchgate.db" in told
    assert "Set TORCHGATE_DATABASE_URL=sqlite:////" in told


def test_a_store_that_cannot_be_written() -> None:
    told = refused(model_store="/proc")  # nobody can make a file there, and root is no exception
    assert told.startswith("TORCHGATE_MODEL_STORE=/proc: /proc: ")
    assert "nothing can be written" in told
    assert "Set TORCHGATE_DATABASE_URL=sqlite:////" in told
    told = refused(database_url="sqlite:////proc/state.db")
    assert told.startswith("TORCHGATE_DATABASE_URL=sqlite:////proc/state.db: /proc: ")
    assert "Name another file" in told


def a_folder(path: Path) -> None:
    path.mkdir()


def something_else(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04 no database")


def a_torn_one(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER)")
    connection.close()
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 1000)


@pytest.mark.parametrize(
    ("make", "named"),
    [(a_folder, "Is a directory"), (something_else, "file is not a database"), (a_torn_one, "malformed")],
)
def test_a_file_that_is_no_database(tmp_path: Path, make: Callable[[Path], None], named: str) -> None:
    path = tmp_path / "torchgate.db"
    make(path)
    told = refused(model_store=str(tmp_path))
    assert told.startswith(f"TORCHGATE_MODEL_STORE={tmp_path}: {path}: ")
    assert named in told


def test_an_empty_folder_and_a_database_that_is_used_are_let_be(tmp_path: Path) -> None:
    settings = Settings(model_store=tmp_path)
    require_place(settings)
    assert list(tmp_path.iterdir()) == []
    database = Database(settings.state_url)
    database.open()
    with database.writing():
        require_place(settings)
    database.close()
