"""Makes SQLAlchemy's engine for a database, with the options that each kind needs."""

import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.persistence.engines.place import read_place

BUSY_SECONDS = 5
BUSY_LOOK_SECONDS = 0.02
POOL_SECONDS = 5


def create_engine(url: str, num_threads: int) -> sa.Engine:
    """Return an engine for so many threads that has not connected yet; raises PlaceInvalid."""
    place = read_place(url)
    make = _sqlite if place.get_backend_name() == "sqlite" else _postgres
    return make(place, {"pool_size": num_threads, "max_overflow": 0, "pool_timeout": POOL_SECONDS})


def _postgres(place: sa.URL, options: dict[str, Any]) -> sa.Engine:
    from service.persistence.engines.postgres import (  # noqa: PLC0415 - an extra
        DEFAULT_OPTIONS,
        BoundedConnection,
        limit_statements,
    )

    engine = sa.create_engine(place, pool_pre_ping=True, **options)

    @sa.event.listens_for(engine, "do_connect")
    def connects(_: Any, __: Any, args: tuple[Any, ...], given: dict[str, Any]) -> BoundedConnection:
        # What the URL says goes first: it may know that its network is slow.
        return BoundedConnection.connect(*args, **{**DEFAULT_OPTIONS, **given})

    sa.event.listen(engine, "connect", lambda connection, _: limit_statements(connection))
    return engine


def _sqlite(place: sa.URL, options: dict[str, Any]) -> sa.Engine:
    engine = sa.create_engine(place, connect_args={"timeout": BUSY_SECONDS}, **options)
    if not Path(str(place.database)).exists():
        with suppress(OSError):  # the first connection reports what is wrong with the path
            Path(str(place.database)).touch(mode=0o600)  # the database holds the key that signs prediction ids

    # By default the driver begins a transaction at its first write. That fails if another process has written since
    # the first read. An acknowledged change must survive a crash of the machine, hence FULL.
    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        _turn_to_wal(connection)
        for pragma in ("synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begins(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _turn_to_wal(connection: sqlite3.Connection) -> None:
    """Have the database keep a write-ahead log, once and for all; waits for others that write, as any statement does.

    SQLite's own timeout does not hold for this one: beside a writer it fails at once.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(BUSY_LOOK_SECONDS)
        else:
            return
