"""The highest counter that a manifest was accepted with, so that an older one is noticed. Everything here blocks."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import sqlalchemy as sa

from service.errors.admin import StateUnavailable
from service.persistence.database import Database
from service.persistence.tables import manifest_counters as table


@dataclass(frozen=True, order=True)
class Accepted:
    """A counter, and the sha256 of the one manifest that had it."""

    counter: int
    sha256: str


NOTHING = Accepted(0, "")


class Counters:
    """One row for each key. The counter of a key that is no longer trusted does not count.

    So whoever stole a key and signed with a huge counter holds up nobody once that key is removed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: dict[str, Accepted] = {}  # by key id; also while the database is unreachable
        self._was_read = False

    def highest(self, key_ids: Collection[str]) -> Accepted:
        """Return the highest one by these keys; raises StateUnavailable if nothing was read so far."""
        try:
            self._database.open()
            with self._database.reading() as connection:
                rows = connection.execute(sa.select(table)).all()
        except StateUnavailable:
            if not self._was_read:
                raise
        else:
            known = {row.key_id: Accepted(row.counter, row.sha256) for row in rows}
            for key_id, accepted in known.items():
                self._remember(key_id, accepted)
            for key_id, accepted in list(self._seen.items()):  # another thread may look, too
                if key_id not in known or known[key_id].counter < accepted.counter:
                    self._write(key_id, accepted)
            self._was_read = True
        return max((self._seen[key_id] for key_id in key_ids if key_id in self._seen), default=NOTHING)

    def accept(self, key_id: str, accepted: Accepted) -> None:
        """Remember a counter here, and in the database: now, or at the next look if it is unreachable."""
        self._remember(key_id, accepted)
        self._write(key_id, accepted)

    def _write(self, key_id: str, accepted: Accepted) -> None:
        values = {"counter": accepted.counter, "sha256": accepted.sha256}
        row = table.c.key_id == key_id
        with suppress(StateUnavailable), self._database.writing() as connection:
            if connection.scalar(sa.select(table.c.counter).where(row)) is None:
                connection.execute(sa.insert(table).values(key_id=key_id, **values))
            else:  # another gateway may have written a higher one
                connection.execute(sa.update(table).where(row, table.c.counter < accepted.counter).values(**values))

    def _remember(self, key_id: str, accepted: Accepted) -> None:
        self._seen[key_id] = max(accepted, self._seen.get(key_id, accepted), key=lambda each: each.counter)
