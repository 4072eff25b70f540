"""The database behind the state: its tables, one way to read and one to write, and one error for all that fails.

Everything here blocks, and so does what is built on it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    and_,
    create_engine,
    event,
    func,
    insert,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from service.errors.admin import StateUnavailable

SCHEMA_VERSION = 1
BUSY_SECONDS = 5
CONNECT_SECONDS = 3
CLOSE_SECONDS = 10  # for a statement that is under way
# SQLite gives only an INTEGER its numbers by itself.
SERIAL = BigInteger().with_variant(Integer(), "sqlite")

tables = MetaData()
schema = Table("torchgate_schema", tables, Column("version", Integer, primary_key=True))
models = Table(
    "torchgate_models",
    tables,
    Column("model", String(200), primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("document", Text, nullable=False),
)
events = Table(
    "torchgate_events",
    tables,
    Column("id", SERIAL, primary_key=True, autoincrement=True),
    Column("time", Float(53), nullable=False),
    Column("gateway", String(100), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("action", String(50), nullable=False),
    Column("model", String(200), nullable=False, index=True),
    Column("subject", String(200), nullable=False),
    Column("reason", Text, nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("detail", Text, nullable=False),
    Column("before", Text),
    Column("after", Text),
)
guard_counts = Table(
    "torchgate_guard_counts",
    tables,
    Column("model", String(200), primary_key=True),
    Column("rollout", Integer, primary_key=True),
    Column("gateway", String(100), primary_key=True),
    Column("document", Text, nullable=False),
)
progress = Table(
    "torchgate_rollout_progress",
    tables,
    Column("model", String(200), primary_key=True),
    Column("rollout", Integer, primary_key=True),
    Column("document", Text, nullable=False),
)
leases = Table(
    "torchgate_leases",
    tables,
    Column("name", String(100), primary_key=True),
    Column("holder", String(100), nullable=False),
    Column("beat", Integer, nullable=False),
)
gateways = Table(
    "torchgate_gateways",
    tables,
    Column("gateway", String(100), primary_key=True),
    Column("document", Text, nullable=False),
)
secrets = Table(
    "torchgate_secrets",
    tables,
    Column("name", String(100), primary_key=True),
    Column("value", String(200), nullable=False),
)
feedback = Table(
    "torchgate_feedback",
    tables,
    Column("answer", String(100), primary_key=True),
    Column("item", Integer, primary_key=True),
    Column("model", String(200), nullable=False),
    Column("version", String(200), nullable=False),
    Column("predicted", String(200), nullable=False),
    Column("label", String(200), nullable=False),
    Column("is_correct", Boolean, nullable=False),
    Column("time", Float(53), nullable=False),
)


class Database:
    """The database behind `url`; nothing happens before `open`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: Engine | None = None
        self._is_closed = False
        self._num_users = 0
        self._someone_left = Condition()

    def open(self) -> None:
        """Connect, and make the tables where there are none.

        Raises:
            StateUnavailable: the database cannot be reached or belongs to another release.
        """
        with self._used(), _translated():
            if self._engine is not None:
                return
            engine = _engine(self._url)
            try:
                _make_tables(engine)
            except BaseException:
                engine.dispose()
                raise
            self._engine = engine

    def close(self) -> None:
        """Let go of the connections, once those who use one are done: a pool that is gone closes none it gets back."""
        with self._someone_left:
            self._is_closed = True
            self._someone_left.wait_for(lambda: not self._num_users, CLOSE_SECONDS)
        if self._engine is not None:
            self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection for queries; raises StateUnavailable."""
        with self._used(), _translated(), self._connected().connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection in a transaction that ends with the context; raises StateUnavailable."""
        with self._used(), _translated(), self._connected().begin() as connection:
            yield connection

    def put(self, table: Table, key: Mapping[str, str | int], document: Mapping[str, object]) -> None:
        """Write `document` as JSON into the row of this key, whether or not there is one; raises StateUnavailable."""
        where = and_(*(table.c[name] == value for name, value in key.items()))
        text = json.dumps(document)
        with self.writing() as connection:
            if not connection.execute(update(table).where(where).values(document=text)).rowcount:
                connection.execute(insert(table).values(**key, document=text))

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._someone_left:
            if self._is_closed:
                raise StateUnavailable("it is closed, as the gateway stops")
            self._num_users += 1
        try:
            yield
        finally:
            with self._someone_left:
                self._num_users -= 1
                self._someone_left.notify_all()

    def _connected(self) -> Engine:
        if self._engine is None:
            raise StateUnavailable("it has not been opened yet")
        return self._engine


def _make_tables(engine: Engine) -> None:
    """Make the tables that are missing; raises StateUnavailable for those of another release."""
    tables.create_all(engine)
    with engine.begin() as connection:
        found = connection.scalar(select(func.max(schema.c.version)))
        if found is None:
            connection.execute(insert(schema).values(version=SCHEMA_VERSION))
        elif found != SCHEMA_VERSION:
            raise StateUnavailable(f"the database has schema {found}, this release reads {SCHEMA_VERSION}")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise StateUnavailable(f"TORCHGATE_DATABASE_URL cannot be used: {error}") from error
    except SQLAlchemyError as error:
        # What the driver said, without the statement and its values.
        raise StateUnavailable(f"{type(error).__name__}: {getattr(error, 'orig', None) or error}") from error


def _engine(url: str) -> Engine:
    place = make_url(url)
    if place.drivername == "postgresql":
        place = place.set(drivername="postgresql+psycopg")  # the driver that the extra `postgres` brings
    if place.get_backend_name() != "sqlite":
        return create_engine(place, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_SECONDS})
    engine = create_engine(place, connect_args={"timeout": BUSY_SECONDS})
    if place.database and not Path(place.database).exists():
        with suppress(OSError):  # the first connection will say what is wrong with the place
            Path(place.database).touch(mode=0o600)  # it holds the key that signs the ids of answers

    # By itself the driver begins a transaction at its first write, which fails where another process wrote since
    # the first read; and an acknowledged change must survive whatever happens to the machine.
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begins(connection: Connection) -> None:
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
