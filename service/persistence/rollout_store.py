"""What gateways count of a rollout, and how far it has come; both change too often for the state. Everything blocks."""

import json

from sqlalchemy import delete, select

from service.domain.rollout import Counts, Progress
from service.persistence.database import Database, guard_counts, progress


class RolloutStore:
    """The counts and the progress of rollouts; `gateway` is whose counts it writes."""

    def __init__(self, database: Database, gateway: str) -> None:
        self._database = database
        self._gateway = gateway

    def write_counts(self, model: str, rollout: int, counts: Counts) -> None:
        """Write what this gateway has counted of a rollout."""
        key: dict[str, str | int] = {"model": model, "rollout": rollout, "gateway": self._gateway}
        self._database.put(guard_counts, key, counts.document())

    def counts(self, model: str, rollout: int) -> Counts:
        """Return what all gateways have counted of a rollout, those that are gone included."""
        query = select(guard_counts.c.document).where(guard_counts.c.model == model, guard_counts.c.rollout == rollout)
        with self._database.reading() as connection:
            documents = connection.scalars(query).all()
        return sum((Counts.of(json.loads(document)) for document in documents), Counts())

    def write_progress(self, model: str, rollout: int, now: Progress) -> None:
        """Write how far a rollout has come."""
        self._database.put(progress, {"model": model, "rollout": rollout}, now.document())

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
                # Earlier rollouts too: a late gateway may have written of them after they ended.
                connection.execute(delete(table).where(table.c.model == model, table.c.rollout <= rollout))
