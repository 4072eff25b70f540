"""Deletes events and feedback that are older than is kept; a little at a time, by the gateway that drives rollouts."""

import asyncio
import logging
import time
from collections.abc import Callable

import sqlalchemy as sa

from service.config.settings import Settings
from service.errors.admin import StateUnavailable
from service.persistence.database import Database
from service.persistence.leader_lease import Lease
from service.persistence.tables import events, feedback

logger = logging.getLogger(__name__)

STEP_ROWS = 500  # so that no transaction keeps decisions waiting
STEP_PAUSE_SECONDS = 1.0
PAUSE_SECONDS = 60.0
# They stay whatever their age: a clock that jumps into the future must not delete the log.
FEWEST_EVENTS = 1000
DAY_SECONDS = 86_400


class Retention:
    """Keeps the tables that grow with use as small as the settings say."""

    def __init__(
        self, database: Database, lease: Lease, settings: Settings, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._lease = lease
        self._event_seconds = settings.event_retention_days * DAY_SECONDS
        self._event_rows = max(settings.event_retention_rows, FEWEST_EVENTS)
        # A label is known for as long as its answer takes one: none is counted twice.
        self._feedback_seconds = max(settings.feedback_retention_days * DAY_SECONDS, settings.feedback_seconds)
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look for rows to delete, every minute."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def prune(self) -> int:
        """Delete at most STEP_ROWS of each table; return how many went from the fullest step. Blocks."""
        now = self._clock()
        return max(self._prune_events(now - self._event_seconds), self._prune_feedback(now - self._feedback_seconds))

    async def _keep(self) -> None:
        while True:
            is_step = False
            try:
                is_step = self._lease.is_held and await self._database.call(self.prune) == STEP_ROWS
            except StateUnavailable as error:
                logger.debug("nothing old can be deleted: %s", error)
            except Exception:  # the one task that must survive whatever it meets; the cause is in the log
                logger.exception("deleting old events and feedback failed; it goes on")
            await asyncio.sleep(STEP_PAUSE_SECONDS if is_step else PAUSE_SECONDS)

    def _prune_events(self, oldest: float) -> int:
        oldest_rows = sa.select(events.c.id).order_by(events.c.id).limit(STEP_ROWS).subquery()
        with self._database.writing() as connection:
            newest = connection.scalar(sa.select(sa.func.max(events.c.id))) or 0
            is_old = sa.and_(events.c.time < oldest, events.c.id <= newest - FEWEST_EVENTS)
            is_too_many = events.c.id <= newest - self._event_rows
            among = events.c.id <= sa.select(sa.func.max(oldest_rows.c.id)).scalar_subquery()
            return connection.execute(sa.delete(events).where(among, sa.or_(is_old, is_too_many))).rowcount

    def _prune_feedback(self, oldest: float) -> int:
        key = sa.tuple_(feedback.c.answer, feedback.c.item)
        old = sa.select(feedback.c.answer, feedback.c.item).where(feedback.c.time < oldest)
        with self._database.writing() as connection:
            first = old.order_by(feedback.c.time).limit(STEP_ROWS)
            return connection.execute(sa.delete(feedback).where(key.in_(first))).rowcount
