"""`torchgate state backup` and `restore`: the whole state in one file, and back."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from service.persistence.database import Database
from service.persistence.upkeep.sqlite_files import (
    Content,
    Damaged,
    UpkeepFailed,
    connected,
    copy,
    read_content,
    require_whole,
)

COUNTERS = "torchgate_manifest_counters"
RAISE_COUNTER = f"""
    INSERT INTO {COUNTERS} (key_id, counter, sha256) VALUES (?, ?, ?)
    ON CONFLICT (key_id) DO UPDATE SET counter = excluded.counter, sha256 = excluded.sha256
    WHERE excluded.counter > counter
"""  # noqa: S608 - our name


def back_up(database: Path, file: Path) -> Content:
    """Write the state into a new file, gateways running or not; return what the file holds.

    Every decision that was acknowledged before the call is in it. Raises UpkeepFailed.
    """
    if not database.is_file():
        raise UpkeepFailed(f"there is no state yet: {database} is missing")
    try:
        with closing(connected(database)) as source:
            return copy(source, file, read_content)
    except sqlite3.Error as error:
        raise UpkeepFailed(f"{database}: {error}") from error


def restore(file: Path, database: Path, *, is_forced: bool) -> tuple[Content, Path | None]:
    """Make the state what a backup holds; return that, and where the former state is kept, if there was one.

    One thing never goes back: the counters of signatures, by which an old manifest is told from a new one.

    Raises:
        UpkeepFailed: the backup cannot be read; or, without `is_forced`, the database is in use or damaged.
        StateUnavailable: the backup cannot be upgraded to this release's tables.
    """
    content = read_content(file)
    former = _former(database)
    try:
        if not database.exists():
            _install(file, database)
            return content, None
        try:
            require_whole(database)
        except Damaged as error:
            if not is_forced:
                raise UpkeepFailed(f"{error}. Stop its gateways, then use --force: it is set aside") from error
            _set_aside(database, former)
            _install(file, database)
            return content, former
        with closing(connected(database)) as target:
            if not is_forced:
                _lock(target, database)
            copy(target, former, require_whole)
            with _with_counters_of(former, file) as whole, closing(connected(whole)) as source:
                source.backup(target)  # one transaction: whoever reads sees the one state or the other
    except sqlite3.Error as error:
        raise UpkeepFailed(f"{database}: {error}. It is as it was") from error
    except OSError as error:
        raise UpkeepFailed(f"{database}: {error.strerror}") from error
    return read_content(database), former


def _lock(target: sqlite3.Connection, database: Path) -> None:
    """Keep everybody else out of the database until the connection is closed; raises UpkeepFailed.

    Every running gateway has a connection open, and only the last one may leave SQLite's log mode.
    """
    try:
        target.execute("PRAGMA journal_mode=DELETE")
        target.execute("PRAGMA locking_mode=EXCLUSIVE")
        target.execute("BEGIN EXCLUSIVE")
        target.execute("COMMIT")  # the lock stays
    except sqlite3.OperationalError as error:
        raise UpkeepFailed(
            f"a gateway uses {database}. Stop all gateways of this database, or use --force to change it under them"
        ) from error


@contextmanager
def _with_counters_of(former: Path, file: Path) -> Iterator[Path]:
    """Give a backup in which no counter of signatures is lower than in `former`: the file itself, or a copy."""
    with closing(connected(former)) as connection:
        is_there = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (COUNTERS,)).fetchone()[0]
        query = f"SELECT key_id, counter, sha256 FROM {COUNTERS}"  # noqa: S608 - our name
        counters = connection.execute(query).fetchall() if is_there else []
    if not counters:
        yield file
        return
    with tempfile.TemporaryDirectory(prefix=f".{former.name}.", dir=former.parent) as folder:
        made = Path(folder) / "restored"
        _install(file, made)
        database = Database(f"sqlite:///{made}")
        try:
            database.open()  # which upgrades the tables: the backup may be from before there were counters
        finally:
            database.close()
        with closing(connected(made)) as connection:
            connection.executemany(RAISE_COUNTER, counters)
            connection.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
        yield made


def _former(database: Path) -> Path:
    return database.with_name(f"{database.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")


def _set_aside(database: Path, former: Path) -> None:
    """Move a damaged database away, with its log."""
    for end in ("", "-wal", "-shm"):
        path = database.with_name(database.name + end)
        if path.exists():
            path.rename(former.with_name(former.name + end))


def _install(file: Path, database: Path) -> None:
    with closing(connected(file)) as source:
        copy(source, database, require_whole)
