"""Carries out `torchgate state ...` and says what came of it."""

import sys
from pathlib import Path

import sqlalchemy as sa

from service.config.settings import Settings
from service.persistence.engines.place import PlaceInvalid, read_place
from service.persistence.upkeep.backup import back_up, restore
from service.persistence.upkeep.sqlite_files import UpkeepFailed

OF_POSTGRESQL = {
    "backup": "The state is in PostgreSQL, whose own program backs it up. Gateways may run.",
    "restore": "The state is in PostgreSQL, whose own program restores it. Stop all gateways of this database first.",
}
RELEASES = "Use the program of the server's release or of a newer one; the password comes from PGPASSWORD or ~/.pgpass."


def run(settings: Settings, verb: str, file: Path, *, is_forced: bool) -> int:
    """Back the state up into a file, or restore it from one; print the result and return the exit status."""
    try:
        place = read_place(settings.state_url)
        if place.get_backend_name() != "sqlite":
            print(_advice(place, verb, file), file=sys.stderr)
            return 2
        database = Path(str(place.database)).absolute()
        if verb == "backup":
            print(f"{file} holds {back_up(database, file)} of {database}.")
            return 0
        content, former = restore(file, database, is_forced=is_forced)
    except (PlaceInvalid, UpkeepFailed) as error:
        print(f"torchgate: {error}.", file=sys.stderr)
        return 1
    print(f"{database} holds {content} of {file}. Start the gateway.")
    if former is not None:
        print(f"The former state is kept in {former}.")
    return 0


def _advice(place: sa.URL, verb: str, file: Path) -> str:
    """Return the command of PostgreSQL's that does the same, without a password."""
    url = place.set(drivername="postgresql", password=None).render_as_string()
    if verb == "backup":
        command = f"pg_dump --format=custom --table='torchgate_*' --file='{file}' '{url}'"
    else:
        command = f"pg_restore --clean --if-exists --no-owner --single-transaction --dbname='{url}' '{file}'"
    return f"torchgate: {OF_POSTGRESQL[verb]} {RELEASES} Run:\n\n  {command}"
