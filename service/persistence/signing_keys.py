"""The key that signs prediction ids, and the one before it: all gateways of a database share them."""

import secrets
from dataclasses import dataclass, field

from sqlalchemy import Connection, delete, insert, select

from service.persistence.database import Database
from service.persistence.tables import secrets as table

PRESENT, PREVIOUS = "prediction_ids", "prediction_ids_previous"


@dataclass(frozen=True)
class SigningKeys:
    """The present key, and the one that it has replaced."""

    present: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)
    replaced_at: int = 0  # seconds since 1970; when the previous one was


def signing_keys(database: Database) -> SigningKeys:
    """Return the keys; the first call makes one. Blocks."""
    with database.reading() as connection:
        keys = _read(connection)
    if keys is None:
        with database.writing() as connection:
            keys = _read(connection)  # another gateway may have been first
            if keys is None:
                keys = _write(connection, SigningKeys(secrets.token_bytes(32)))
    return keys


def rotate(database: Database, now: float) -> None:
    """Replace the present key by a new one; the one before it is forgotten. Blocks."""
    with database.writing() as connection:
        keys = _read(connection)
        _write(connection, SigningKeys(secrets.token_bytes(32), None if keys is None else keys.present, int(now)))


def _read(connection: Connection) -> SigningKeys | None:
    found = {
        row.name: row.value for row in connection.execute(select(table).where(table.c.name.in_([PRESENT, PREVIOUS])))
    }
    if PRESENT not in found:
        return None
    present = bytes.fromhex(found[PRESENT])
    if PREVIOUS not in found:
        return SigningKeys(present)
    previous, _, replaced_at = found[PREVIOUS].partition(" ")
    return SigningKeys(present, bytes.fromhex(previous), int(replaced_at))


def _write(connection: Connection, keys: SigningKeys) -> SigningKeys:
    values = {PRESENT: keys.present.hex()}
    if keys.previous is not None:
        values[PREVIOUS] = f"{keys.previous.hex()} {keys.replaced_at}"
    connection.execute(delete(table).where(table.c.name.in_([PRESENT, PREVIOUS])))
    connection.execute(insert(table), [{"name": name, "value": value} for name, value in values.items()])
    return keys
