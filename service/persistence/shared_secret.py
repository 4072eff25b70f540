"""Random keys that all gateways of a database share."""

import secrets

from sqlalchemy import insert, select

from service.persistence.database import Database
from service.persistence.tables import secrets as table


def shared_secret(database: Database, name: str) -> bytes:
    """Return the key of this name; the first call makes it. Blocks."""
    with database.writing() as connection:
        value = connection.scalar(select(table.c.value).where(table.c.name == name))
        if value is None:
            value = secrets.token_hex(32)
            connection.execute(insert(table).values(name=name, value=value))
    return bytes.fromhex(value)
