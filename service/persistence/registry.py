"""The state of the models in memory, for requests to read, and the one way to change it.

Requests never wait for the database: they read `models`, which is replaced whole. A poll of the database brings the
changes of other gateways.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from service.domain.model_state import Entry, Event, EventResult, ModelState
from service.errors.admin import StateUnavailable
from service.errors.gateway import GatewayError
from service.errors.request import ModelNotFound
from service.persistence.state_store import StateStore, storable
from service.telemetry.policy_metrics import PolicyMetrics

logger = logging.getLogger(__name__)

T = TypeVar("T")
# Callers must not be able to fill the disk by way of the event log.
MOST_REFUSALS = 60
REFUSALS_SECONDS = 60.0
LONGEST_DETAIL = 2000
LONGEST_LOGGED = 200  # of what a caller sends
TURN_SECONDS = 5.0


class Registry:
    """Keeps `models` as the database has it, and writes changes to it, one at a time."""

    def __init__(
        self,
        store: StateStore,
        poll_seconds: float,
        metrics: PolicyMetrics,
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        self._metrics = metrics
        self._store = store
        self._on_look = on_look  # called in a thread whenever the database is looked at
        self._poll_seconds = poll_seconds
        self._position = -1
        self._is_open = False
        self._writing = asyncio.Lock()
        self._poller: asyncio.Task[None] | None = None
        self._writes: set[asyncio.Task[Any]] = set()
        self._refusals_from = -REFUSALS_SECONDS
        self._num_refusals = 0
        self.models: Mapping[str, ModelState] = {}

    async def open(self) -> None:
        """Connect to the database, read it and begin to poll it, unless that is done; raises StateUnavailable."""
        if self._is_open:
            return
        await self._store.database.call(self._store.database.open)
        self._is_open = True
        await self.refresh()
        self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def close(self) -> None:
        """Stop the poll, finish the writes, and close the database."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        await asyncio.gather(*self._writes, return_exceptions=True)
        await asyncio.to_thread(self._store.database.close)

    async def change(
        self, entry: Entry, revision: int | None, edit: Callable[[ModelState], ModelState], detail: str = ""
    ) -> ModelState:
        """Write a change and its event, and show it to requests, as StateStore.change says.

        A change that has begun is finished even if the caller is cancelled.
        """
        return await self._carried_through(self._change(entry, revision, edit, detail, "done"))

    async def withdraw(self, entry: Entry, edit: Callable[[ModelState], ModelState], error: Exception) -> None:
        """Undo a change that could not be carried out; its event has the outcome `refused` and the error."""
        logger.warning("%s by %s is withdrawn: %s", storable(str(entry)), entry.actor, error)
        await self._carried_through(self._change(entry, None, edit, _detail(error), "refused"))

    async def _change(
        self,
        entry: Entry,
        revision: int | None,
        edit: Callable[[ModelState], ModelState],
        detail: str,
        outcome: EventResult,
    ) -> ModelState:
        before, after = await self._locked(lambda: self._store.change(entry, revision, edit, detail, outcome))
        self._metrics.count(before, after)
        # The poll may have read a later one already.
        if after.revision > self.revision(entry.model):
            self._show({**self.models, entry.model: after})
        return after

    async def refuse(self, entry: Entry, error: GatewayError) -> None:
        """Log that a change was refused, and write the event if there is a database; at most MOST_REFUSALS a minute."""
        now = time.monotonic()
        if now - self._refusals_from > REFUSALS_SECONDS:
            self._refusals_from, self._num_refusals = now, 0
        self._num_refusals += 1
        if self._num_refusals > MOST_REFUSALS:
            return
        detail = _detail(error)
        logger.warning(
            "%s by %s is refused: %s",
            storable(str(entry))[:LONGEST_LOGGED],
            storable(entry.actor),
            storable(detail)[:LONGEST_LOGGED],
        )
        if not isinstance(error, StateUnavailable):
            await self.note(entry, "refused", detail)

    async def note(self, entry: Entry, outcome: EventResult, detail: str) -> None:
        """Write an event that changes no state, or a log line where that fails; before `open` neither."""
        if not self._is_open:
            return
        try:
            await self._carried_through(self._locked(lambda: self._store.note(entry, outcome, detail)))
        except StateUnavailable as unavailable:
            logger.warning(
                "%s (%s) could not be written into the event log: %s", storable(str(entry)), outcome, unavailable
            )

    async def log(self, model: str, limit: int, before: int | None) -> Sequence[Event]:
        """Return events of a model, the newest first."""
        return await self._store.database.call_for_caller(self._store.log, model, limit, before)

    def state(self, model: str) -> ModelState:
        """Return the current state of a model; raises ModelNotFound."""
        if model not in self.models:
            raise ModelNotFound(model, sorted(self.models))
        return self.models[model]

    def revision(self, model: str) -> int:
        """Return the current revision of a model, 0 for an unknown one."""
        return self.models[model].revision if model in self.models else 0

    async def refresh(self) -> None:
        """Read the state again if it has changed."""
        async with self._turn():
            position = await self._store.database.call(self._look)
            if position != self._position:
                self._show(await self._store.database.call(self._store.read))
                self._position = position

    def _look(self) -> int:
        self._on_look()
        return self._store.position()

    def _show(self, models: Mapping[str, ModelState]) -> None:
        self.models = models
        self._metrics.show(models)

    async def _carried_through(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.get_running_loop().create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)

    async def _locked(self, work: Callable[[], T]) -> T:
        if not self._is_open:
            raise StateUnavailable("it has not been opened yet")
        async with self._turn():
            return await self._store.database.call(work)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Let one at a time use the database; raises StateUnavailable to those who would wait for too long."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._writing.acquire()
        except TimeoutError as error:
            raise StateUnavailable(f"others have waited for its answer for {TURN_SECONDS:g} s") from error
        try:
            yield
        finally:
            self._writing.release()

    async def _poll(self) -> None:
        was_reachable = True
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self.refresh()
            except StateUnavailable as error:
                if was_reachable:
                    logger.warning("%s Requests are routed by the last known state.", error)
                was_reachable = False
            else:
                was_reachable = True


def _detail(error: Exception) -> str:
    return f"{getattr(error, 'code', type(error).__name__)}: {error}"[:LONGEST_DETAIL]
