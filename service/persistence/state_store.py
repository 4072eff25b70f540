"""The state of the models and the event log in the database; a change and its event are one transaction.

Everything here blocks; registry.py calls it from a thread.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.domain.model_state import Entry, Event, EventResult, ModelState
from service.errors.admin import RevisionStale
from service.persistence.database import Database
from service.persistence.tables import events, models

_STATES = TypeAdapter(ModelState)


class StateStore:
    """The state in `database`; `gateway` is the name under which this one writes events."""

    def __init__(self, database: Database, gateway: str) -> None:
        self.database = database
        self._gateway = gateway

    def position(self) -> int:
        """Return a number that grows with every change."""
        with self.database.reading() as connection:
            # Not the last event's number: of two transactions the one with the lower may commit later.
            return int(connection.scalar(select(func.sum(models.c.revision))) or 0)

    def read(self) -> dict[str, ModelState]:
        """Return the state of every model."""
        with self.database.reading() as connection:
            rows = connection.execute(select(models).order_by(models.c.model)).all()
        return {row.model: _state(row) for row in rows}

    def change(
        self,
        entry: Entry,
        revision: int | None,
        edit: Callable[[ModelState], ModelState],
        detail: str,
        outcome: EventResult,
    ) -> tuple[ModelState, ModelState]:
        """Replace the state of the entry's model by what `edit` returns, and write the event; return both states.

        `revision` is the one that the change is based on; None is any. An edit that changes nothing writes nothing.

        Raises:
            RevisionStale: the state has another revision by now.
            StateUnavailable: the database cannot be reached.
        """
        with self.database.writing() as connection:
            known = models.c.model == entry.model
            row = connection.execute(select(models).where(known).with_for_update()).one_or_none()
            before = ModelState(entry.model) if row is None else _state(row)
            if revision is not None and before.revision != revision:
                raise RevisionStale(entry.model, revision, before.revision)
            edited = edit(before)
            if edited == before:
                return before, before
            after = replace(edited, revision=before.revision + 1)
            document = _STATES.dump_json(after, exclude={"model", "revision"}).decode()
            values = {"revision": after.revision, "document": document}
            if row is None:
                try:
                    connection.execute(insert(models).values(model=entry.model, **values))
                except IntegrityError as error:  # another gateway was first
                    raise RevisionStale(entry.model, before.revision, before.revision + 1) from error
            else:
                connection.execute(update(models).where(known).values(**values))
            self._write(connection, entry, outcome, detail, json.dumps(before.shown()), json.dumps(after.shown()))
            return before, after

    def note(self, entry: Entry, outcome: EventResult, detail: str) -> None:
        """Write an event that changes no state."""
        with self.database.writing() as connection:
            self._write(connection, entry, outcome, detail)

    def log(self, model: str, limit: int, before: int | None) -> Sequence[Event]:
        """Return the last `limit` events of a model, the newest first; those older than event `before` if given."""
        query = select(events).where(events.c.model == model).order_by(events.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(events.c.id < before)
        with self.database.reading() as connection:
            return [_event(row) for row in connection.execute(query).all()]

    def _write(
        self,
        connection: Connection,
        entry: Entry,
        outcome: EventResult,
        detail: str,
        before: str | None = None,
        after: str | None = None,
    ) -> None:
        columns: Any = events.c
        row: dict[str, str | None] = {
            name: storable(text)[: columns[name].type.length] for name, text in asdict(entry).items()
        }
        row |= {"outcome": outcome, "detail": storable(detail), "before": before, "after": after}
        connection.execute(insert(events).values(time=time.time(), gateway=self._gateway, **row))


def storable(text: str) -> str:
    """Return what a caller wrote without what a database refuses: half characters, which JSON allows, and NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _state(row: Any) -> ModelState:
    return _STATES.validate_python({"model": row.model, "revision": row.revision, **json.loads(row.document)})


def _event(row: Any) -> Event:
    entry = Entry(row.actor, row.action, row.model, row.subject, row.reason)
    before, after = (None if text is None else json.loads(text) for text in (row.before, row.after))
    return Event(row.id, row.time, row.gateway, entry, row.outcome, row.detail, before, after)
