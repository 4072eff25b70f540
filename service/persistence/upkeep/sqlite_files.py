"""SQLite files with a state in them: checked before they are trusted, and written whole or not at all."""

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from service.persistence.migrations.revisions import RevisionUnknown, found_revision

T = TypeVar("T")

WAIT_SECONDS = 5.0


class UpkeepFailed(Exception):
    """It was not done; says why and what to do, and nothing has changed."""


class Damaged(UpkeepFailed):
    """A file is no whole database."""


@dataclass(frozen=True)
class Content:
    """What a database with a state holds."""

    num_models: int
    num_events: int

    def __str__(self) -> str:
        numbers = (self.num_models, "model"), (self.num_events, "event")
        return " and ".join(f"{number} {name}{'' if number == 1 else 's'}" for number, name in numbers)


def require_whole(path: Path) -> None:
    """Raise Damaged unless a file is a whole SQLite database; UpkeepFailed if it cannot be read now."""
    if not path.is_file():
        raise UpkeepFailed(f"there is no file {path}")
    with _errors_named(path), closing(connected(path)) as connection:
        faults = [row[0] for row in connection.execute("PRAGMA integrity_check(3)") if row[0] != "ok"]
    if faults:
        raise Damaged(f"{path} is damaged: {'; '.join(faults)}")


def read_content(path: Path) -> Content:
    """Check a file and return what it holds; raises UpkeepFailed unless this release can read a whole state from it."""
    require_whole(path)
    with _errors_named(path), closing(connected(path)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        try:
            revision = found_revision(tables, lambda query: connection.execute(query).fetchone()[0])
        except RevisionUnknown as error:
            raise UpkeepFailed(f"{path}: {error}") from error
        if revision is None:
            raise UpkeepFailed(f"{path} holds no state of torchgate")
        counts = [
            connection.execute(f"SELECT count(*) FROM torchgate_{name}").fetchone()[0]  # noqa: S608 - our names
            for name in ("models", "events")
        ]
    return Content(*counts)


@contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:  # locked, or not to be opened
        raise UpkeepFailed(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise Damaged(f"{path} is damaged: {error}") from error


def connected(path: Path) -> sqlite3.Connection:
    """Return a connection to a file that is there; it is never made."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=WAIT_SECONDS, isolation_level=None)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Give the path of an empty file of 0600 that becomes `path`, synced, if all goes well.

    Raises:
        UpkeepFailed: there is a `path` already, or it cannot be written. It is as it was.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    except OSError as error:
        raise UpkeepFailed(f"{path} cannot be written: {error.strerror}") from error
    os.close(handle)
    made = Path(name)
    try:
        yield made
        _synced(made, os.O_RDWR)
        os.link(made, path)  # unlike a rename, it never replaces anything
        _synced(path.parent, os.O_DIRECTORY)
    except FileExistsError as error:
        raise UpkeepFailed(f"{path} is there already, and it is left as it is. Name another file") from error
    except OSError as error:
        raise UpkeepFailed(f"{path} cannot be written: {error.strerror}") from error
    finally:
        for end in ("", "-journal", "-wal", "-shm"):
            made.with_name(made.name + end).unlink(missing_ok=True)


def copy(source: sqlite3.Connection, path: Path, check: Callable[[Path], T]) -> T:
    """Write a database, as of one moment and with its log, into a new file; return what the check says of it."""
    with new_file(path) as made:
        with closing(sqlite3.connect(made, isolation_level=None)) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
        return check(made)


def _synced(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
