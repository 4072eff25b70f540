"""What gateways count of a rollout, and its progress; both change too often for the state. Everything blocks."""

from pydantic import TypeAdapter
from sqlalchemy import delete, select

from service.domain.rollout import Counts, Progress
from service.persistence.database import Database
from service.persistence.tables import guard_counts, progress

_COUNTS = TypeAdapter(Counts)
_PROGRESS = TypeAdapter(Progress)


class RolloutStore:
    """The counts and the progress of rollouts; `gateway` is whose counts it writes."""

    def __init__(self, database: Database, gateway: str) -> None:
        self.database = database
        self._gateway = gateway

    def write_counts(self, model: str, rollout: int, counts: Counts) -> None:
        """Write this gateway's counts of a rollout."""
        key: dict[str, str | int] = {"model": model, "rollout": rollout, "gateway": self._gateway}
        self.database.put(guard_counts, key, _COUNTS.dump_json(counts))

    def counts(self, model: str, rollout: int) -> Counts:
        """Return the counts of all gateways, including those that are gone."""
        query = select(guard_counts.c.document).where(guard_counts.c.model == model, guard_counts.c.rollout == rollout)
        with self.database.reading() as connection:
            return sum(map(_COUNTS.validate_json, connection.scalars(query)), Counts())

    def write_progress(self, model: str, rollout: int, now: Progress) -> None:
        """Write the progress of a rollout."""
        self.database.put(progress, {"model": model, "rollout": rollout}, _PROGRESS.dump_json(now))

    def progress(self, model: str, rollout: int) -> Progress | None:
        """Return the progress of a rollout; None if there is none, or none any more."""
        query = select(progress.c.document).where(progress.c.model == model, progress.c.rollout == rollout)
        with self.database.reading() as connection:
            document = connection.scalar(query)
        return None if document is None else _PROGRESS.validate_json(document)

    def forget(self, model: str, rollout: int) -> None:
        """Delete the counts of a rollout that has ended. Its progress stays until the next one has ended."""
        with self.database.writing() as connection:
            # Earlier rollouts too: a slow gateway may have written after they ended.
            ended = guard_counts.c.model == model, guard_counts.c.rollout <= rollout
            connection.execute(delete(guard_counts).where(*ended))
            connection.execute(delete(progress).where(progress.c.model == model, progress.c.rollout < rollout))
