"""The gateways on one database: which are alive, which state each routes by, and which versions it still drains.

A version is unloaded from a shared model server only when no gateway will send it another request.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import TypeAdapter
from sqlalchemy import delete, select

from service.domain.backend import Target
from service.domain.model_state import ModelState
from service.errors.admin import StateUnavailable
from service.persistence.database import Database
from service.persistence.tables import gateways

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
# A gateway whose heartbeat has not changed for this long is gone, by the reader's clock.
LIVE_SECONDS = 6.0
FORGET_SECONDS = 60.0
LOOK_SECONDS = 0.1


class LoadFailure(NamedTuple):
    """Why the gateway that leads a model server could not load a version."""

    model: str
    version: str
    revision: int  # of the model's state that the gateway acted on
    reason: str


@dataclass(frozen=True)
class Heartbeat:
    """What a gateway tells the others."""

    number: int
    seen: Mapping[str, int]  # model -> revision that requests are routed by
    busy: Sequence[tuple[str, str]]  # model and version of what is being drained
    failures: Sequence[LoadFailure] = ()
    server: str = ""  # whose failures these are

    def has_released(self, target: Target, revision: int) -> bool:
        """Return whether the gateway has seen this revision of the model and no longer drains the version."""
        has_seen = self.seen.get(target.model, revision) >= revision
        return has_seen and (target.model, target.version) not in self.busy


_HEARTBEATS = TypeAdapter(Heartbeat)


class Membership:
    """Tells the other gateways about this one, and reads what they tell; `server` names its model server."""

    def __init__(self, database: Database, gateway: str, server: str) -> None:
        self._database = database
        self._gateway = gateway
        self._server = server
        self._number = 0
        self._seen: dict[str, int] = {}
        self._busy: set[Target] = set()
        self._failures: list[LoadFailure] = []
        self._last: dict[str, tuple[Heartbeat, float]] = {}  # gateway -> its last heartbeat, and when it was new
        self._writing = asyncio.Lock()
        self._news = asyncio.Event()  # there is something new to tell
        self._task: asyncio.Task[None] | None = None

    @property
    def gateways(self) -> list[str]:
        """Return the names of the gateways that are alive, as of the last look: this one, then the others."""
        return [self._gateway, *sorted(name for name in self._alive() if name != self._gateway)]

    async def start(self) -> None:
        """Begin to write heartbeats."""
        self._task = asyncio.get_running_loop().create_task(self._keep_beating())

    async def close(self) -> None:
        """Stop, and delete this gateway's heartbeat."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._database.call(self._delete, self._gateway)
        except StateUnavailable as error:
            logger.info("the other gateways are not told that this one ends: %s", error)

    def tell(self, models: Mapping[str, ModelState], failed: Mapping[Target, str]) -> None:
        """Tell the others which states requests are routed by, and why this gateway could not load a version."""
        seen = {model: state.revision for model, state in models.items()}
        failures = [LoadFailure(each.model, each.version, seen.get(each.model, 0), why) for each, why in failed.items()]
        if (seen, failures) != (self._seen, self._failures):
            self._seen, self._failures = seen, failures
            self._news.set()

    def begin_drain(self, target: Target) -> None:
        """Tell the others that requests for a version are in progress here."""
        self._busy.add(target)

    def end_drain(self, target: Target) -> None:
        """Tell the others that none are any more."""
        self._busy.discard(target)
        self._news.set()

    def failure(self, target: Target, revision: int) -> str:
        """Return why this model server's leader could not load a version as of this revision; empty if it could."""
        ours = [heartbeat for heartbeat, _ in self._last.values() if heartbeat.server == self._server]
        for failure in (each for heartbeat in ours for each in heartbeat.failures):
            if Target(failure.model, failure.version) == target and failure.revision >= revision:
                return failure.reason
        return ""

    async def until_free(self, target: Target, revision: int) -> None:
        """Return when no gateway has or will have requests for `target`: all have seen the revision and drained."""
        while True:
            try:
                await self._beat()
                alive = await self._look()
            except StateUnavailable as error:
                logger.warning("%s stays loaded until the other gateways can be asked: %s", target, error)
            else:
                late = [name for name, each in alive.items() if not each.has_released(target, revision)]
                if not late:
                    return
                logger.info("%s is still in use by %s", target, ", ".join(late))
            await asyncio.sleep(LOOK_SECONDS)  # a poll: the database announces nothing

    async def _keep_beating(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._beat()
                await self._look()
                now = time.monotonic()
                for name in [name for name, (_, seen_at) in self._last.items() if now - seen_at > FORGET_SECONDS]:
                    await self._database.call(self._delete, name)
            except StateUnavailable as error:
                logger.debug("the other gateways cannot be told: %s", error)
            except Exception:  # the one task that must survive whatever it meets; the cause is in the log
                logger.exception("telling the other gateways failed; it goes on")

    async def _beat(self) -> None:
        """Write this gateway's heartbeat."""
        async with self._writing:
            self._number += 1
            busy = sorted((target.model, target.version) for target in self._busy)
            heartbeat = Heartbeat(self._number, self._seen, busy, self._failures, self._server)
            document = _HEARTBEATS.dump_json(heartbeat)
            await self._database.call(self._database.put, gateways, {"gateway": self._gateway}, document)

    async def _look(self) -> Mapping[str, Heartbeat]:
        """Read the heartbeats; return those of the gateways that are alive."""
        heartbeats = await self._database.call(self._read)
        now, before = time.monotonic(), self._last
        self._last = {}
        for name, heartbeat in heartbeats.items():
            last = before.get(name)
            self._last[name] = last if last is not None and last[0] == heartbeat else (heartbeat, now)
        return self._alive()

    def _alive(self) -> Mapping[str, Heartbeat]:
        now = time.monotonic()
        return {name: each for name, (each, seen_at) in self._last.items() if now - seen_at <= LIVE_SECONDS}

    def _read(self) -> Mapping[str, Heartbeat]:
        with self._database.reading() as connection:
            rows = connection.execute(select(gateways)).all()
        return {row.gateway: _HEARTBEATS.validate_json(row.document) for row in rows}

    def _delete(self, gateway: str) -> None:
        with self._database.writing() as connection:
            connection.execute(delete(gateways).where(gateways.c.gateway == gateway))
