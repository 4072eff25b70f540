"""Where the state's database is: reads the URL, and refuses one that cannot work before the gateway listens."""

import sqlite3
import sys
import tempfile
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from service.config.environment import HIDDEN, env_name
from service.config.settings import Settings
from service.persistence.migrations.revisions import RevisionUnknown, found_revision

FORMS = "sqlite:////folder/file.db or postgresql://user:password@host/database"
# By the name in the URL: a driver that blocks, as everything in this package does.
DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgresql": "postgresql+psycopg",  # the driver that the extra `postgres` brings
    "postgresql+psycopg": "postgresql+psycopg",
}
FIRST_BYTES = b"SQLite format 3\0"


class PlaceInvalid(ValueError):
    """No database can be opened with this URL; says why, and what to do, without a password."""


def read_place(url: str) -> sa.URL:
    """Return where a URL leads, with the driver to use; raises PlaceInvalid."""
    try:
        place = sa.make_url(url)
    except (ArgumentError, ValueError) as error:  # the text may hold a password: it is not shown
        raise PlaceInvalid(f"it is not a URL of a database. Use {FORMS}") from error
    if place.drivername not in DRIVERS:
        raise PlaceInvalid(f"the state is kept in SQLite or PostgreSQL, not in {place.drivername}. Use {FORMS}")
    place = place.set(drivername=DRIVERS[place.drivername])
    if _is_torn(place):
        raise PlaceInvalid("there are two @ in it. Write %40 for one that is in the user or the password")
    if place.get_backend_name() == "sqlite":
        _require_file_name(place)
    else:
        _require_postgres(place)
    return place


def require_place(settings: Settings) -> None:
    """Raise ValueError, naming the setting, the place and the mend, if the state's database cannot work there.

    The same if there is no model store, or if signatures are asked for and the state is in the store.
    """
    try:
        place = read_place(settings.state_url)
        if place.get_backend_name() == "sqlite":
            _require_file(Path(str(place.database)), is_in_store=settings.database_url is None)
    except PlaceInvalid as error:
        raise ValueError(f"{_given(settings)}: {error}.") from error
    if settings.trusted_keys_dir is not None and _is_inside(place, settings.model_store):
        given = f"{env_name('trusted_keys_dir')}={settings.trusted_keys_dir}"
        raise ValueError(
            f"{given}: the state tells which manifests are old, and it is in the model store: whoever can replace the "
            f"store could make it forget. Set {env_name('database_url')}=sqlite:////folder/file.db, outside of "
            f"{settings.model_store}."
        )
    if not settings.model_store.is_dir():
        given = f"{env_name('model_store')}={settings.model_store}"
        raise ValueError(f"{given}: there is no such folder. Make it, or name the one that has the archives.")


def shown(url: str) -> str:
    """Return a URL for people: no password, and no options, which may hold one too."""
    try:
        place = sa.make_url(url)
    except (ArgumentError, ValueError):
        return HIDDEN
    return HIDDEN if _is_torn(place) else place.set(query={}).render_as_string(hide_password=True)


def _is_torn(place: sa.URL) -> bool:
    """Return whether a URL has an @ that ends the password too early, so that its rest would be shown."""
    return place.get_backend_name() != "sqlite" and "@" in f"{place.host}{place.database}"


def _is_inside(place: sa.URL, folder: Path) -> bool:
    file = place.database if place.get_backend_name() == "sqlite" else None
    return file is not None and Path(file).resolve().is_relative_to(folder.resolve())


def _given(settings: Settings) -> str:
    if settings.database_url is None:
        return f"{env_name('model_store')}={settings.model_store}"
    return f"{env_name('database_url')}={shown(settings.state_url)}"


def _require_file_name(place: sa.URL) -> None:
    if not place.database or place.database == ":memory:":
        raise PlaceInvalid("a database in memory forgets every decision. Name a file: sqlite:////folder/file.db")
    if place.host or place.query or place.database.startswith("file:"):
        raise PlaceInvalid("name a file and nothing else: sqlite:////folder/file.db, with four slashes before a folder")


def _require_postgres(place: sa.URL) -> None:
    if find_spec("psycopg") is None:
        raise PlaceInvalid(f"{sys.executable} has no psycopg. Install the extra 'postgres'")
    from psycopg import ProgrammingError  # noqa: PLC0415 - an extra
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415

    _, options = place.get_dialect()().create_connect_args(place)
    try:
        make_conninfo(**options)
    except ProgrammingError as error:  # the driver says which option it does not know
        raise PlaceInvalid(f"{str(error).strip()}. Use {FORMS}") from error


def _require_file(path: Path, *, is_in_store: bool) -> None:
    """Raise PlaceInvalid unless SQLite can read and write this file, and make others beside it."""
    path = path.absolute()
    other = f"Set {env_name('database_url')}=sqlite:////folder/file.db to keep it elsewhere" if is_in_store else ""
    what = f"the state's database is kept in {path.name} there" if is_in_store else "the state's database is kept there"
    if not path.parent.is_dir():
        raise PlaceInvalid(_sentences(f"there is no folder {path.parent}, and {what}", "Make the folder", other))
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        fault = f"{path.parent}: {error.strerror}: nothing can be written into this folder, and {what}"
        raise PlaceInvalid(_sentences(fault, "Make it writable", other or "Name another file")) from error
    try:
        _require_database(path)
    except FileNotFoundError:
        return  # it will be made
    except RevisionUnknown as error:
        raise PlaceInvalid(f"{path}: {error}") from error
    except OSError as error:
        raise PlaceInvalid(_sentences(f"{path}: {error.strerror}", "Make it a writable file", other)) from error
    except sqlite3.DatabaseError as error:
        mend = "Move it away for an empty one, or restore a backup (torchgate state restore)"
        raise PlaceInvalid(_sentences(f"{path}: {error}", mend, other)) from error


def _require_database(path: Path) -> None:
    with path.open("r+b") as file:  # read-only files fail here
        first = file.read(len(FIRST_BYTES))
    if first not in {b"", FIRST_BYTES}:
        raise sqlite3.DatabaseError("file is not a database")
    with closing(sqlite3.connect(path, timeout=1)) as connection:
        try:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            found_revision(tables, lambda query: connection.execute(query).fetchone()[0])
        except sqlite3.OperationalError:
            return  # somebody else is writing; opening it later waits longer


def _sentences(*parts: str) -> str:
    return ". ".join(part for part in parts if part)
