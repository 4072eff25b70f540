"""What changes too often for the state: counts and progress of rollouts, the lease of who drives them, feedback.

Everything here blocks.
"""

import json
import secrets as random_secrets
import time
from dataclasses import dataclass

from sqlalchemy import Table, and_, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.domain.rollout import Counts, Progress
from service.errors.admin import StateUnavailable
from service.persistence.database import Database, feedback, gateways, guard_counts, leases, progress, secrets


@dataclass(frozen=True)
class Lease:
    """Who drives, and how often it has said so."""

    holder: str
    beat: int


@dataclass(frozen=True)
class Heartbeat:
    """What a gateway tells the others: the revisions that it routes by, and what it drains."""

    number: int
    seen: dict[str, int]  # model -> revision
    busy: list[tuple[str, str]]  # model, version


@dataclass(frozen=True)
class Label:
    """What somebody says that one image of an answer really is."""

    answer: str  # a digest of the answer's id
    item: int
    model: str
    version: str
    predicted: str
    label: str
    is_correct: bool


class Ledger:
    """The tables beside the state; `gateway` is who writes."""

    def __init__(self, database: Database, gateway: str) -> None:
        self._database = database
        self._gateway = gateway

    def write_counts(self, model: str, rollout: int, counts: Counts) -> None:
        """Write what this gateway has counted of a rollout."""
        self._put(guard_counts, {"model": model, "rollout": rollout, "gateway": self._gateway}, counts.document())

    def counts(self, model: str, rollout: int) -> Counts:
        """Return what all gateways have counted of a rollout, those that are gone included."""
        query = select(guard_counts.c.document).where(guard_counts.c.model == model, guard_counts.c.rollout == rollout)
        with self._database.reading() as connection:
            documents = connection.scalars(query).all()
        return sum((Counts.of(json.loads(document)) for document in documents), Counts())

    def write_progress(self, model: str, rollout: int, now: Progress) -> None:
        """Write how far a rollout has come."""
        self._put(progress, {"model": model, "rollout": rollout}, now.document())

    def progress(self, model: str, rollout: int) -> Progress:
        """Return how far a rollout has come."""
        query = select(progress.c.document).where(progress.c.model == model, progress.c.rollout == rollout)
        with self._database.reading() as connection:
            document = connection.scalar(query)
        return Progress() if document is None else Progress.of(json.loads(document))

    def forget(self, model: str, rollout: int) -> None:
        """Delete what was written of a rollout that has ended."""
        with self._database.writing() as connection:
            for table in (guard_counts, progress):
                # The ones before as well: a gateway that was late may have written of them once more.
                connection.execute(delete(table).where(table.c.model == model, table.c.rollout <= rollout))

    def lease(self, name: str, stale: Lease | None) -> Lease:
        """Return who holds a lease now: this gateway, if it did, if nobody does, or if it is still as `stale`.

        Nobody's clock matters: who sees no beat for long enough takes over.
        """
        mine = leases.c.name == name
        with self._database.writing() as connection:
            row = connection.execute(select(leases).where(mine).with_for_update()).one_or_none()
            if row is None:
                try:
                    connection.execute(insert(leases).values(name=name, holder=self._gateway, beat=1))
                except IntegrityError:  # another one was first
                    return Lease("", 0)
                return Lease(self._gateway, 1)
            found = Lease(row.holder, row.beat)
            if found.holder != self._gateway and found != stale:
                return found
            connection.execute(update(leases).where(mine).values(holder=self._gateway, beat=found.beat + 1))
            return Lease(self._gateway, found.beat + 1)

    def release(self, name: str) -> None:
        """Let go of a lease, if this gateway holds it."""
        with self._database.writing() as connection:
            connection.execute(delete(leases).where(leases.c.name == name, leases.c.holder == self._gateway))

    def beat(self, beat: Heartbeat) -> None:
        """Tell the other gateways about this one."""
        document: dict[str, object] = {"number": beat.number, "seen": beat.seen, "busy": beat.busy}
        self._put(gateways, {"gateway": self._gateway}, document)

    def beats(self) -> dict[str, Heartbeat]:
        """Return the last word of every gateway, those that were killed included."""
        with self._database.reading() as connection:
            rows = connection.execute(select(gateways)).all()
        found = {row.gateway: json.loads(row.document) for row in rows}
        return {
            name: Heartbeat(each["number"], each["seen"], [(model, version) for model, version in each["busy"]])
            for name, each in found.items()
        }

    def leave(self, gateway: str) -> None:
        """Delete what was told about a gateway that is gone."""
        with self._database.writing() as connection:
            connection.execute(delete(gateways).where(gateways.c.gateway == gateway))

    def secret(self, name: str) -> bytes:
        """Return a random key that all gateways of this database share, made when first asked for."""
        query = select(secrets.c.value).where(secrets.c.name == name)
        with self._database.writing() as connection:
            value = connection.scalar(query)
            if value is None:
                value = random_secrets.token_hex(32)
                connection.execute(insert(secrets).values(name=name, value=value))
        return bytes.fromhex(value)

    def add_label(self, label: Label) -> bool:
        """Keep a label; return whether it is the first for that image."""
        try:
            with self._database.writing() as connection:
                connection.execute(
                    insert(feedback).values(
                        answer=label.answer,
                        item=label.item,
                        model=label.model,
                        version=label.version,
                        predicted=label.predicted,
                        label=label.label,
                        is_correct=label.is_correct,
                        time=time.time(),
                    )
                )
        except StateUnavailable as error:
            if isinstance(error.__cause__, IntegrityError):
                return False
            raise
        return True

    def _put(self, table: Table, key: dict[str, str | int], document: dict[str, object]) -> None:
        where = and_(*(table.c[name] == value for name, value in key.items()))
        text = json.dumps(document)
        with self._database.writing() as connection:
            if not connection.execute(update(table).where(where).values(document=text)).rowcount:
                connection.execute(insert(table).values(**key, document=text))
