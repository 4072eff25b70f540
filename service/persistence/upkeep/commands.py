"""Carries out `torchgate state ...` and says what came of it."""

import shlex
import sys
import time
from pathlib import Path

import sqlalchemy as sa

from service.config.settings import Settings
from service.errors.admin import StateUnavailable
from service.persistence.database import Database
from service.persistence.engines.place import PlaceInvalid, read_place
from service.persistence.signing_keys import rotate
from service.persistence.upkeep.backup import back_up, restore
from service.persistence.upkeep.sqlite_files import UpkeepFailed

OF_POSTGRESQL = {
    "backup": "The state is in PostgreSQL, whose own program backs it up. Gateways may run.",
    "restore": "The state is in PostgreSQL, whose own program restores it. Stop all gateways of this database first. "
    "If manifests are signed, sign the newest one anew afterwards: the restored counter may let older ones in.",
}
SECRET_OPTIONS = {"password", "sslpassword"}
RELEASES = "Use the program of the server's release or of a newer one; the password comes from PGPASSWORD or ~/.pgpass."


def run(settings: Settings, verb: str, file: Path | None, *, is_forced: bool) -> int:
    """Back the state up into a file, restore it from one, or replace the key of prediction ids.

    Print the result and return the exit status.
    """
    try:
        place = read_place(settings.state_url)
        if file is None:
            _rotate_key(settings.state_url, place)
            return 0
        if place.get_backend_name() != "sqlite":
            print(_advice(place, verb, file), file=sys.stderr)
            return 2
        database = Path(str(place.database)).absolute()
        if verb == "backup":
            print(f"{file} holds {back_up(database, file)} of {database}.")
            return 0
        content, former = restore(file, database, is_forced=is_forced)
    except (PlaceInvalid, UpkeepFailed, StateUnavailable) as error:
        print(f"torchgate: {str(error).rstrip('.')}.", file=sys.stderr)
        return 1
    print(f"{database} holds {content} of {file}. Start the gateway.")
    if former is not None:
        print(f"The former state is kept in {former}.")
    return 0


def _rotate_key(url: str, place: sa.URL) -> None:
    if place.get_backend_name() == "sqlite" and not Path(str(place.database)).is_file():
        raise UpkeepFailed(f"there is no file {place.database}")
    database = Database(url)
    try:
        database.open()
        rotate(database, time.time())
    finally:
        database.close()
    print(
        "Prediction ids are signed with a new key; running gateways take it when they next look at the state. Feedback "
        "on answers from before is taken as ever. Run it again to refuse all ids of the former key."
    )


def _advice(place: sa.URL, verb: str, file: Path) -> str:
    """Return the command of PostgreSQL's that does the same, without a password."""
    # Built anew: to set the password to None leaves it, and options may hold one, too.
    options = {name: value for name, value in place.query.items() if name not in SECRET_OPTIONS}
    bare = sa.URL.create("postgresql", place.username, None, place.host, place.port, place.database, options)
    url, name = shlex.quote(bare.render_as_string(hide_password=False)), shlex.quote(str(file))
    if verb == "backup":
        command = f"pg_dump --format=custom --table='torchgate_*' --file={name} {url}"
    else:
        command = f"pg_restore --clean --if-exists --no-owner --single-transaction --dbname={url} {name}"
    return f"torchgate: {OF_POSTGRESQL[verb]} {RELEASES} Run:\n\n  {command}"
