"""The state of the models and the event log in the database; every change is one transaction with its event.

Everything here blocks; service/persistence/registry.py calls it from a thread.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.domain.model_state import Entry, Event, EventResult, ModelState
from service.errors.admin import RevisionStale
from service.persistence.database import Database, events, models


class StateStore:
    """The state in `database`; `gateway` is the name under which this one writes events."""

    def __init__(self, database: Database, gateway: str) -> None:
        self._database = database
        self._gateway = gateway

    def open(self) -> None:
        """Connect; raises StateUnavailable."""
        self._database.open()

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def position(self) -> int:
        """Return a number that grows with every change."""
        with self._database.reading() as connection:
            # Not the last event's number: of two transactions the one with the lower may commit later.
            return int(connection.scalar(select(func.sum(models.c.revision))) or 0)

    def read(self) -> dict[str, ModelState]:
        """Return the state of every model."""
        with self._database.reading() as connection:
            rows = connection.execute(select(models).order_by(models.c.model)).all()
        return {row.model: ModelState.of(row.model, row.revision, json.loads(row.document)) for row in rows}

    def change(
        self,
        entry: Entry,
        revision: int | None,
        edit: Callable[[ModelState], ModelState],
        detail: str = "",
        outcome: EventResult = "done",
    ) -> ModelState:
        """Replace the state of the entry's model by what `edit` makes of it, and write the event.

        `revision` is the one that the change is based on, None for whichever there is. An edit that changes nothing
        leaves revision and log as they are; one that raises leaves everything.

        Raises:
            RevisionStale: the state has another revision by now.
            StateUnavailable: the database cannot be reached.
        """
        with self._database.writing() as connection:
            known = models.c.model == entry.model
            row = connection.execute(select(models).where(known).with_for_update()).one_or_none()
            before = ModelState(entry.model)
            if row is not None:
                before = ModelState.of(entry.model, row.revision, json.loads(row.document))
            if revision is not None and before.revision != revision:
                raise RevisionStale(entry.model, revision, before.revision)
            edited = edit(before)
            if edited == before:
                return before
            document = edited.document()
            after = ModelState.of(entry.model, before.revision + 1, document)
            values = {"revision": after.revision, "document": json.dumps(document)}
            if row is None:
                try:
                    connection.execute(insert(models).values(model=entry.model, **values))
                except IntegrityError as error:  # another gateway was first
                    raise RevisionStale(entry.model, before.revision, before.revision + 1) from error
            else:
                connection.execute(update(models).where(known).values(**values))
            self._write(connection, entry, outcome, detail, before.shown(), after.shown())
            return after

    def note(self, entry: Entry, outcome: EventResult, detail: str) -> None:
        """Write an event that changes no state."""
        with self._database.writing() as connection:
            self._write(connection, entry, outcome, detail, None, None)

    def log(self, model: str, limit: int, before: int | None) -> Sequence[Event]:
        """Return the last `limit` events of a model, the newest first; those older than event `before` if given."""
        query = select(events).where(events.c.model == model).order_by(events.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(events.c.id < before)
        with self._database.reading() as connection:
            return [_event(row) for row in connection.execute(query).all()]

    def _write(
        self,
        connection: Connection,
        entry: Entry,
        outcome: EventResult,
        detail: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
    ) -> None:
        connection.execute(
            insert(events).values(
                time=time.time(),
                gateway=self._gateway,
                actor=entry.actor[:200],
                action=entry.action,
                model=entry.model[:200],
                subject=entry.subject[:200],
                reason=entry.reason,
                outcome=outcome,
                detail=detail,
                before=None if before is None else json.dumps(before),
                after=None if after is None else json.dumps(after),
            )
        )


def _event(row: Any) -> Event:
    return Event(
        row.id,
        row.time,
        row.gateway,
        Entry(row.actor, row.action, row.model, row.subject, row.reason),
        row.outcome,
        row.detail,
        None if row.before is None else json.loads(row.before),
        None if row.after is None else json.loads(row.after),
    )
