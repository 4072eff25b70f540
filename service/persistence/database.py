"""The database: one way to read, one way to write, threads of its own, and one error for every failure.

Everything but `call` and `call_for_caller` blocks, and so does what is built on it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Condition, Lock
from typing import ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from service.errors.admin import StateUnavailable
from service.persistence.engines.engine import create_engine
from service.persistence.engines.place import PlaceInvalid
from service.persistence.engines.threads import DatabaseThreads
from service.persistence.migrations.revisions import RevisionUnknown
from service.persistence.migrations.upgrade import make_current
from service.telemetry.state_metrics import StateMetrics

CLOSE_SECONDS = 10  # for a statement that is under way
OWN_THREADS, MOST_OWN_CALLS = 4, 64
CALLERS_THREADS, MOST_CALLERS_CALLS = 4, 128

P = ParamSpec("P")
T = TypeVar("T")


class Database:
    """The database behind `url`; nothing happens before `open`."""

    def __init__(self, url: str, metrics: StateMetrics | None = None) -> None:
        self._url = url
        self._metrics = metrics or StateMetrics()
        self._engine: sa.Engine | None = None
        self._opening = Lock()
        self._is_closed = False
        self._num_users = 0
        self._someone_left = Condition()
        # Feedback and logs are asked for by anybody: they must not keep leases and decisions waiting.
        self._own = DatabaseThreads("database", OWN_THREADS, MOST_OWN_CALLS, self._metrics)
        self._callers = DatabaseThreads("database-callers", CALLERS_THREADS, MOST_CALLERS_CALLS, self._metrics)

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the gateway's own work on the database in a thread; raises StateUnavailable if it takes too long."""
        return await self._own.call(work, *args, **kwargs)

    async def call_for_caller(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what any caller may ask for, in other threads; raises StateUnavailable if it takes too long."""
        return await self._callers.call(work, *args, **kwargs)

    def open(self) -> None:
        """Connect, and make or upgrade the tables.

        Raises:
            StateUnavailable: the database cannot be reached, or a newer release has upgraded it; or an upgrade goes on.
        """
        if self._engine is not None and not self._is_closed:
            return  # the database is not asked, so this is no sign of life
        if not self._opening.acquire(blocking=False):
            raise StateUnavailable("it is being opened or upgraded")
        with ExitStack() as stack:
            stack.callback(self._opening.release)
            stack.enter_context(self._used())
            if self._engine is not None:
                return
            engine = create_engine(self._url, OWN_THREADS + CALLERS_THREADS)
            try:
                make_current(engine)
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
        for threads in (self._own, self._callers):
            threads.close()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Give a connection for queries; raises StateUnavailable."""
        engine = self._connected()
        with self._used(), engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Give a connection in a transaction that ends with the context; raises StateUnavailable."""
        engine = self._connected()
        with self._used(), engine.begin() as connection:
            yield connection

    def put(self, table: sa.Table, key: Mapping[str, str | int], document: bytes) -> None:
        """Insert or replace the JSON document of this key; raises StateUnavailable."""
        where = sa.and_(*(table.c[name] == value for name, value in key.items()))
        with self.writing() as connection:
            if not connection.execute(sa.update(table).where(where).values(document=document.decode())).rowcount:
                connection.execute(sa.insert(table).values(**key, document=document.decode()))

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Keep `close` waiting, count the outcome, and translate the errors."""
        with self._someone_left:
            if self._is_closed:
                raise StateUnavailable("it is closed, as the gateway stops")
            self._num_users += 1
        try:
            with self._counted():
                yield
        except PlaceInvalid as error:
            raise StateUnavailable(f"TORCHGATE_DATABASE_URL cannot be used: {error}") from error
        except RevisionUnknown as error:
            raise StateUnavailable(str(error)) from error
        except SQLAlchemyError as error:
            # What the driver said, without the statement and its values.
            raise StateUnavailable(f"{type(error).__name__}: {getattr(error, 'orig', None) or error}") from error
        finally:
            with self._someone_left:
                self._num_users -= 1
                self._someone_left.notify_all()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError:  # an answer, too: the row is there already
            self._metrics.succeeded()
            raise
        except (SQLAlchemyError, PlaceInvalid, RevisionUnknown, StateUnavailable):
            self._metrics.failed("failed")
            raise
        except Exception:  # a refusal by whoever looked at what the database said
            self._metrics.succeeded()
            raise
        self._metrics.succeeded()

    def _connected(self) -> sa.Engine:
        if self._engine is None:
            raise StateUnavailable("it has not been opened yet")
        return self._engine
