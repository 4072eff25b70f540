"""Connections to PostgreSQL that never wait for long: not for the network, not for a lock, not for a server that hangs.

The server ends slow statements itself. A server that hangs does not, and neither does the network while a machine in
between confirms what it receives. So the client has a limit of its own and hangs up.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen

CONNECT_SECONDS = 3
LOCK_MS = 3000
STATEMENT_MS = 4000
ANSWER_SECONDS = 5.0
# libpq's; https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
DEFAULT_OPTIONS = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8000,  # ms in which the other side must confirm what was sent
}


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed if the server does not answer within ANSWER_SECONDS."""

    is_unlimited = False

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Return what the server answers; raises psycopg.OperationalError if it does not."""
        if self.is_unlimited:
            return super().wait(gen, interval, timeout)
        limit = ANSWER_SECONDS if timeout is None else min(timeout, ANSWER_SECONDS)
        begun = time.monotonic()
        try:
            return super().wait(gen, interval, timeout=limit)
        except psycopg.OperationalError as error:
            if self.closed or time.monotonic() - begun < limit:
                raise
            self.close()  # whatever comes on this connection now is no answer to the next statement
            raise psycopg.OperationalError(f"the server has not answered within {limit:g} s") from error


@contextmanager
def unlimited(connection: object) -> Iterator[None]:
    """Wait for this connection's answers as long as they take: an upgrade may move many rows."""
    assert isinstance(connection, BoundedConnection)
    connection.is_unlimited = True
    try:
        yield
    finally:
        connection.is_unlimited = False


def limit_statements(connection: "psycopg.Connection[Any]") -> None:
    """Have the server end what takes too long, for as long as the connection lasts.

    By statements, since poolers in between refuse the start-up option of the same name.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = {STATEMENT_MS}")
        cursor.execute(f"SET lock_timeout = {LOCK_MS}")
    connection.commit()
