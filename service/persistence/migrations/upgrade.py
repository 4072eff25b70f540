"""Makes the tables of a new database, and upgrades those of an older release; one gateway at a time."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from service.persistence.migrations.revisions import BASELINE, CURRENT, found_revision
from service.persistence.tables import revisions, schema, tables

logger = logging.getLogger(__name__)

LOCK = 0x746F726368676174  # of PostgreSQL's advisory locks: "torchgat"
# What releases without revisions look at. They read 1, and so refuse what they would spoil.
SCHEMA_VERSION = 2


def make_current(engine: sa.Engine) -> None:
    """Bring a database to the current revision, in one transaction; may take minutes.

    Raises:
        RevisionUnknown: it is of a newer release.
        SQLAlchemyError: it cannot be reached, or another gateway is upgrading it.
    """
    with engine.connect() as connection:
        if _revision(connection) == CURRENT:
            return
    with engine.begin() as connection, _alone(connection):
        found = _revision(connection)
        if found is None:
            tables.create_all(connection)
            connection.execute(sa.insert(schema).values(version=SCHEMA_VERSION))
            connection.execute(sa.insert(revisions).values(version_num=CURRENT))
        elif found != CURRENT:
            logger.info("the state's database is upgraded from revision %s to %s", found, CURRENT)
            _upgrade(connection, found)
            logger.info("the state's database has revision %s", CURRENT)


def _revision(connection: sa.Connection) -> str | None:
    names = sa.inspect(connection).get_table_names()
    return found_revision(names, lambda query: connection.execute(sa.text(query)).scalar())


def _upgrade(connection: sa.Connection, found: str) -> None:
    from alembic import command  # noqa: PLC0415 - needed once for each release
    from alembic.config import Config  # noqa: PLC0415

    if found == BASELINE:
        revisions.create(connection, checkfirst=True)
        if connection.scalar(sa.select(revisions.c.version_num)) is None:
            connection.execute(sa.insert(revisions).values(version_num=BASELINE))
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, CURRENT)


@contextmanager
def _alone(connection: sa.Connection) -> Iterator[None]:
    """Wait for others who upgrade the database, and take all the time that it needs.

    A transaction of SQLite's has the lock already; it waits for others as long as for any write.
    """
    if connection.dialect.name != "postgresql":
        yield
        return
    from service.persistence.engines.postgres import unlimited  # noqa: PLC0415 - an extra

    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
    with unlimited(connection.connection.driver_connection):
        connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
        yield
