"""The gateways on one database: which are alive, which state each routes by, and what it still drains.

A version is unloaded from a shared model server only when no gateway will send it another request.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from service.domain.backend import Target
from service.domain.model_state import ModelState
from service.errors.admin import StateUnavailable
from service.persistence.heartbeats import Heartbeat, HeartbeatStore, LoadFailure

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
# A gateway whose heartbeat has not changed for this long is gone, by the reader's clock.
LIVE_SECONDS = 6.0
FORGET_SECONDS = 60.0
LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class _LastHeartbeat:
    heartbeat: Heartbeat
    seen_at: float  # by this gateway's clock


class Membership:
    """Tells the other gateways about this one, and reads what they tell."""

    def __init__(self, store: HeartbeatStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._number = 0
        self._seen: dict[str, int] = {}
        self._busy: set[Target] = set()
        self._failures: list[LoadFailure] = []
        self._last: dict[str, _LastHeartbeat] = {}
        self._writing = asyncio.Lock()
        self._news = asyncio.Event()  # there is something new to tell
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to write heartbeats."""
        self._task = asyncio.get_running_loop().create_task(self._keep_beating())

    async def close(self) -> None:
        """Stop, and delete this gateway's heartbeat."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await asyncio.to_thread(self._store.delete, self._store.gateway)
        except StateUnavailable as error:
            logger.info("the other gateways are not told that this one ends: %s", error)

    def tell(self, models: Mapping[str, ModelState], failures: list[LoadFailure]) -> None:
        """Tell the others which states requests are routed by, and what this gateway could not load."""
        seen = {model: state.revision for model, state in models.items()}
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
        """Return why another gateway could not load a version as of this revision; empty if none has said so."""
        for last in self._last.values():
            for failure in last.heartbeat.failures:
                if failure.target == target and failure.revision >= revision:
                    return failure.reason
        return ""

    async def until_free(self, target: Target, revision: int) -> None:
        """Return when no gateway has or will have requests for `target`: all have seen the revision and drained."""
        while True:
            try:
                await self._beat()
                heartbeats = await asyncio.to_thread(self._store.read)
            except StateUnavailable as error:
                logger.warning("%s stays loaded until the other gateways can be asked: %s", target, error)
            else:
                late = [name for name, each in self._live(heartbeats).items() if not _is_free(each, target, revision)]
                if not late:
                    return
                logger.info("%s is still in use by %s", target, ", ".join(late))
            await asyncio.sleep(LOOK_SECONDS)

    def _live(self, heartbeats: Mapping[str, Heartbeat]) -> Mapping[str, Heartbeat]:
        """Return the heartbeats of the gateways that are there."""
        now = self._clock()
        self._last = {name: last for name, last in self._last.items() if name in heartbeats}
        for name, heartbeat in heartbeats.items():
            last = self._last.get(name)
            if last is None or last.heartbeat != heartbeat:
                self._last[name] = _LastHeartbeat(heartbeat, now)
        return {name: each for name, each in heartbeats.items() if now - self._last[name].seen_at <= LIVE_SECONDS}

    def _long_gone(self) -> list[str]:
        """Return the gateways that were killed some time ago."""
        now = self._clock()
        return [name for name, last in self._last.items() if now - last.seen_at > FORGET_SECONDS]

    async def _keep_beating(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._beat()
                self._live(await asyncio.to_thread(self._store.read))
                for name in self._long_gone():
                    await asyncio.to_thread(self._store.delete, name)
            except StateUnavailable as error:
                logger.debug("the other gateways cannot be told: %s", error)
            except Exception:  # the one task that must survive whatever it meets; the cause is in the log
                logger.exception("telling the other gateways failed; it goes on")

    async def _beat(self) -> None:
        async with self._writing:
            self._number += 1
            busy = sorted((target.model, target.version) for target in self._busy)
            heartbeat = Heartbeat(self._number, dict(self._seen), busy, list(self._failures))
            await asyncio.to_thread(self._store.write, heartbeat)


def _is_free(heartbeat: Heartbeat, target: Target, revision: int) -> bool:
    has_seen = heartbeat.seen.get(target.model, revision) >= revision
    return has_seen and (target.model, target.version) not in heartbeat.busy
