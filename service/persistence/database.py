"""The database: its tables, one way to read, one way to write, and one error for every failure.

Everything here blocks, and so does what is built on it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Condition
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from service.errors.admin import StateUnavailable
from service.persistence.engines.engine import create_engine
from service.persistence.engines.place import PlaceInvalid

SCHEMA_VERSION = 1
CLOSE_SECONDS = 10  # for a statement that is under way

_NAME, _TARGET = sa.String(100), sa.String(200)
_TIME = sa.Float(53)  # seconds since 1970
tables = sa.MetaData()


def _table(name: str, *columns: "sa.Column[Any]") -> sa.Table:
    return sa.Table(f"torchgate_{name}", tables, *columns)


def _key(name: str, kind: Any) -> "sa.Column[Any]":
    return sa.Column(name, kind, primary_key=True)


def _value(name: str, kind: Any, *, index: bool | None = None) -> "sa.Column[Any]":
    return sa.Column(name, kind, nullable=False, index=index)


schema = _table("schema", _key("version", sa.Integer))
models = _table("models", _key("model", _TARGET), _value("revision", sa.Integer), _value("document", sa.Text))
events = _table(
    "events",
    _key("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite")),  # SQLite numbers only an INTEGER by itself
    _value("time", _TIME),
    _value("gateway", _NAME),
    _value("actor", _TARGET),
    _value("action", sa.String(50)),
    _value("model", _TARGET, index=True),
    _value("subject", _TARGET),
    _value("reason", sa.Text),
    _value("outcome", sa.String(20)),
    _value("detail", sa.Text),
    sa.Column("before", sa.Text),
    sa.Column("after", sa.Text),
)
guard_counts = _table(
    "guard_counts",
    _key("model", _TARGET),
    _key("rollout", sa.Integer),
    _key("gateway", _NAME),
    _value("document", sa.Text),
)
progress = _table("rollout_progress", _key("model", _TARGET), _key("rollout", sa.Integer), _value("document", sa.Text))
leases = _table("leases", _key("name", _NAME), _value("holder", _NAME), _value("beat", sa.Integer))
gateways = _table("gateways", _key("gateway", _NAME), _value("document", sa.Text))
secrets = _table("secrets", _key("name", _NAME), _value("value", _TARGET))
feedback = _table(
    "feedback",
    _key("answer", _NAME),
    _key("item", sa.Integer),
    _value("model", _TARGET),
    _value("version", _TARGET),
    _value("predicted", _TARGET),
    _value("label", _TARGET),
    _value("is_correct", sa.Boolean),
    _value("time", _TIME),
)


class Database:
    """The database behind `url`; nothing happens before `open`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: sa.Engine | None = None
        self._is_closed = False
        self._num_users = 0
        self._someone_left = Condition()

    def open(self) -> None:
        """Connect, and make the tables that are missing.

        Raises:
            StateUnavailable: the database cannot be reached or belongs to another release.
        """
        with self._used():
            if self._engine is not None:
                return
            engine = create_engine(self._url)
            try:
                _make_tables(engine)
            except BaseException:
                engine.dispose()
                raise
            self._engine = engine

    def close(self) -> None:
        """Close the connections once nobody uses one; a pool that is disposed of never closes those in use."""
        with self._someone_left:
            self._is_closed = True
            self._someone_left.wait_for(lambda: not self._num_users, CLOSE_SECONDS)
        if self._engine is not None:
            self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Give a connection for queries; raises StateUnavailable."""
        with self._used(), self._connected().connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Give a connection in a transaction that ends with the context; raises StateUnavailable."""
        with self._used(), self._connected().begin() as connection:
            yield connection

    def put(self, table: sa.Table, key: Mapping[str, str | int], document: bytes) -> None:
        """Insert or replace the JSON document of this key; raises StateUnavailable."""
        where = sa.and_(*(table.c[name] == value for name, value in key.items()))
        with self.writing() as connection:
            if not connection.execute(sa.update(table).where(where).values(document=document.decode())).rowcount:
                connection.execute(sa.insert(table).values(**key, document=document.decode()))

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Keep `close` waiting, and translate the errors."""
        with self._someone_left:
            if self._is_closed:
                raise StateUnavailable("it is closed, as the gateway stops")
            self._num_users += 1
        try:
            yield
        except PlaceInvalid as error:
            raise StateUnavailable(f"TORCHGATE_DATABASE_URL cannot be used: {error}") from error
        except SQLAlchemyError as error:
            # What the driver said, without the statement and its values.
            raise StateUnavailable(f"{type(error).__name__}: {getattr(error, 'orig', None) or error}") from error
        finally:
            with self._someone_left:
                self._num_users -= 1
                self._someone_left.notify_all()

    def _connected(self) -> sa.Engine:
        if self._engine is None:
            raise StateUnavailable("it has not been opened yet")
        return self._engine


def _make_tables(engine: sa.Engine) -> None:
    """Make the tables that are missing; raises StateUnavailable for those of another release."""
    tables.create_all(engine)
    with engine.begin() as connection:
        found = connection.scalar(sa.select(sa.func.max(schema.c.version)))
        if found is None:
            connection.execute(sa.insert(schema).values(version=SCHEMA_VERSION))
        elif found != SCHEMA_VERSION:
            raise StateUnavailable(f"the database has schema {found}, this release reads {SCHEMA_VERSION}")
