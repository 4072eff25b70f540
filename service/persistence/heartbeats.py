"""What each gateway tells the others, as the database keeps it. Everything here blocks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from sqlalchemy import delete, select

from service.domain.backend import Target
from service.persistence.database import Database, gateways


@dataclass(frozen=True)
class LoadFailure:
    """Why the gateway that writes to the model server could not load a version."""

    target: Target
    revision: int  # of the model's state that the gateway acted on
    reason: str


@dataclass(frozen=True)
class Heartbeat:
    """What a gateway tells the others: the revisions that it routes by, what it drains, what it could not load."""

    number: int
    seen: dict[str, int]  # model -> revision
    busy: list[tuple[str, str]]  # model, version
    failures: list[LoadFailure] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        """Return the heartbeat as JSON can hold it."""
        failures = [[each.target.model, each.target.version, each.revision, each.reason] for each in self.failures]
        return {"number": self.number, "seen": self.seen, "busy": self.busy, "failures": failures}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the heartbeat that a document holds."""
        busy = [(model, version) for model, version in document["busy"]]
        failures = [LoadFailure(Target(*each[:2]), *each[2:]) for each in document.get("failures", ())]
        return cls(document["number"], document["seen"], busy, failures)


class HeartbeatStore:
    """The last heartbeat of every gateway; `gateway` is whose own it writes."""

    def __init__(self, database: Database, gateway: str) -> None:
        self._database = database
        self.gateway = gateway

    def write(self, heartbeat: Heartbeat) -> None:
        """Tell the other gateways about this one."""
        self._database.put(gateways, {"gateway": self.gateway}, heartbeat.document())

    def read(self) -> dict[str, Heartbeat]:
        """Return the last heartbeat of every gateway, those that were killed included."""
        with self._database.reading() as connection:
            rows = connection.execute(select(gateways)).all()
        return {row.gateway: Heartbeat.of(json.loads(row.document)) for row in rows}

    def delete(self, gateway: str) -> None:
        """Delete the heartbeat of a gateway that is gone."""
        with self._database.writing() as connection:
            connection.execute(delete(gateways).where(gateways.c.gateway == gateway))
