"""The gateways on one database: who is there, what each has seen, and what it still has in flight.

A version may be unloaded from a model server that several gateways use only when none of them will send it anything.
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
from service.persistence.ledger import Heartbeat, Ledger

logger = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
# A gateway that has not been heard of for so long is gone, by the clock of who listens.
LIVE_SECONDS = 6.0
FORGET_SECONDS = 60.0
LOOK_SECONDS = 0.1


@dataclass
class _Heard:
    beat: Heartbeat
    at: float


class Membership:
    """Tells the other gateways about this one, and hears of them."""

    def __init__(self, ledger: Ledger, gateway: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._gateway = gateway
        self._clock = clock
        self._number = 0
        self._seen: dict[str, int] = {}
        self._busy: set[Target] = set()
        self._heard: dict[str, _Heard] = {}
        self._beating = asyncio.Lock()
        self._news = asyncio.Event()  # that others may wait for
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to beat."""
        self._task = asyncio.get_running_loop().create_task(self._keep_beating())

    async def close(self) -> None:
        """Stop, and take leave."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await asyncio.to_thread(self._ledger.leave, self._gateway)
        except StateUnavailable as error:
            logger.info("the other gateways are not told that this one ends: %s", error)

    def follow(self, models: Mapping[str, ModelState]) -> None:
        """Take in that requests are routed by these states now."""
        seen = {model: state.revision for model, state in models.items()}
        if seen != self._seen:
            self._seen = seen
            self._news.set()

    def begin_drain(self, target: Target) -> None:
        """Take in that a version which nobody wants has something in flight here."""
        self._busy.add(target)

    async def drained(self, target: Target, revision: int) -> None:
        """Return when no gateway has anything in flight for `target`, nor will have: all have seen the revision."""
        self._busy.discard(target)
        while True:
            try:
                await self._beat()
                beats = await asyncio.to_thread(self._ledger.beats)
            except StateUnavailable as error:
                logger.warning("%s stays loaded until the other gateways can be asked: %s", target, error)
            else:
                late = [name for name, beat in self._live(beats).items() if not _is_free(beat, target, revision)]
                if not late:
                    return
                logger.info("%s is still in use by %s", target, ", ".join(late))
            await asyncio.sleep(LOOK_SECONDS)

    def _live(self, beats: Mapping[str, Heartbeat]) -> Mapping[str, Heartbeat]:
        """Return the beats of the gateways that are there."""
        now = self._clock()
        self._heard = {name: heard for name, heard in self._heard.items() if name in beats}
        for name, beat in beats.items():
            heard = self._heard.get(name)
            if heard is None or heard.beat != beat:
                self._heard[name] = _Heard(beat, now)
        return {name: beat for name, beat in beats.items() if now - self._heard[name].at <= LIVE_SECONDS}

    def _long_gone(self) -> list[str]:
        """Return the gateways that were killed some time ago."""
        now = self._clock()
        return [name for name, heard in self._heard.items() if now - heard.at > FORGET_SECONDS]

    async def _keep_beating(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), BEAT_SECONDS)
            self._news.clear()
            try:
                await self._beat()
                self._live(await asyncio.to_thread(self._ledger.beats))
                for name in self._long_gone():
                    await asyncio.to_thread(self._ledger.leave, name)
            except StateUnavailable as error:
                logger.debug("the other gateways cannot be told: %s", error)
            except Exception:  # the one task that must survive whatever it meets; the cause is in the log
                logger.exception("telling the other gateways failed; it goes on")

    async def _beat(self) -> None:
        async with self._beating:
            self._number += 1
            beat = Heartbeat(self._number, dict(self._seen), sorted((t.model, t.version) for t in self._busy))
            await asyncio.to_thread(self._ledger.beat, beat)


def _is_free(beat: Heartbeat, target: Target, revision: int) -> bool:
    return beat.seen.get(target.model, revision) >= revision and (target.model, target.version) not in beat.busy
