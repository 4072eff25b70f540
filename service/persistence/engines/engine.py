"""Makes SQLAlchemy's engine for a database, with the options that each kind needs."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.persistence.engines.place import read_place

BUSY_SECONDS = 5
CONNECT_SECONDS = 3


def create_engine(url: str) -> sa.Engine:
    """Return an engine that has not connected yet; raises PlaceInvalid."""
    place = read_place(url)
    return _sqlite(place) if place.get_backend_name() == "sqlite" else _postgres(place)


def _postgres(place: sa.URL) -> sa.Engine:
    return sa.create_engine(place, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_SECONDS})


def _sqlite(place: sa.URL) -> sa.Engine:
    engine = sa.create_engine(place, connect_args={"timeout": BUSY_SECONDS})
    if not Path(str(place.database)).exists():
        with suppress(OSError):  # the first connection reports what is wrong with the path
            Path(str(place.database)).touch(mode=0o600)  # the database holds the key that signs prediction ids

    # By default the driver begins a transaction at its first write. That fails if another process has written since
    # the first read. An acknowledged change must survive a crash of the machine, hence FULL.
    @sa.event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def begins(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
