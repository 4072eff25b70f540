"""The state of the models in memory, for requests to read, and the one way to change it.

Requests never wait for the database: they read `models`, which is replaced whole. Changes of other gateways are seen
within the poll's pause.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from service.domain.model_state import Entry, Event, EventResult, ModelState
from service.errors.admin import StateUnavailable
from service.errors.gateway import GatewayError
from service.errors.request import ModelNotFound
from service.persistence.state_store import StateStore
from service.telemetry.policy_metrics import PolicyMetrics

logger = logging.getLogger(__name__)

T = TypeVar("T")
# The log must not be a way to fill the disk from outside.
MOST_REFUSALS = 60
REFUSALS_SECONDS = 60.0
LONGEST_DETAIL = 2000


class Registry:
    """Keeps `models` as the database has it, and writes changes to it, one at a time."""

    def __init__(
        self,
        store: StateStore,
        poll_seconds: float,
        metrics: PolicyMetrics,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self._metrics = metrics
        self._store = store
        self._on_open = on_open  # called, in a thread, when the database is there
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
        """Connect to the database, unless that is done, and read it; from then on look for changes.

        Raises:
            StateUnavailable: it cannot be used.
        """
        if self._is_open:
            return
        await asyncio.to_thread(self._store.database.open)
        await asyncio.to_thread(self._on_open)
        self._is_open = True
        await self.refresh()
        self._poller = asyncio.get_running_loop().create_task(self._poll())

    async def close(self) -> None:
        """Stop looking and let go of the database."""
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.gather(self._poller, return_exceptions=True)
        await asyncio.gather(*self._writes, return_exceptions=True)
        await asyncio.to_thread(self._store.database.close)

    async def change(
        self, entry: Entry, revision: int | None, edit: Callable[[ModelState], ModelState], detail: str = ""
    ) -> ModelState:
        """Write a change and its event, and have requests see it; see StateStore.change.

        Once begun it is carried through, whether or not the caller still waits.
        """
        return await self._carried_through(self._change(entry, revision, edit, detail, "done"))

    async def withdraw(self, entry: Entry, edit: Callable[[ModelState], ModelState], error: Exception) -> None:
        """Take back a change that could not be carried out; its event says that it was refused, and why."""
        logger.warning(
            "%s of %s %s by %s is withdrawn: %s", entry.action, entry.model, entry.subject, entry.actor, error
        )
        detail = f"{getattr(error, 'code', type(error).__name__)}: {error}"[:LONGEST_DETAIL]
        await self._carried_through(self._change(entry, None, edit, detail, "refused"))

    async def _change(
        self,
        entry: Entry,
        revision: int | None,
        edit: Callable[[ModelState], ModelState],
        detail: str,
        outcome: EventResult,
    ) -> ModelState:
        changes: list[tuple[ModelState, ModelState]] = []

        def watched(before: ModelState) -> ModelState:
            after = edit(before)
            changes.append((before, after))
            return after

        state = await self._locked(lambda: self._store.change(entry, revision, watched, detail, outcome))
        for before, after in changes[-1:]:  # those before it, if any, were tried in vain
            self._metrics.count(before, after)
        # The poll may have read a later one already.
        if state.revision > self.revision(entry.model):
            self._show({**self.models, entry.model: state})
        return state

    async def refuse(self, entry: Entry, error: GatewayError) -> None:
        """Write into the log that a change was refused; at most MOST_REFUSALS a minute, since anybody can send one."""
        now = time.monotonic()
        if now - self._refusals_from > REFUSALS_SECONDS:
            self._refusals_from, self._num_refusals = now, 0
        self._num_refusals += 1
        detail = f"{error.code}: {error}"[:LONGEST_DETAIL]
        asked = f"{entry.action} of {entry.model} {entry.subject}".strip()
        logger.warning("%s by %s is refused: %s", asked, entry.actor, detail)
        if self._num_refusals <= MOST_REFUSALS:
            await self.note(entry, "refused", detail)

    async def note(self, entry: Entry, outcome: EventResult, detail: str) -> None:
        """Write an event that changes no state; where that fails there is a line in this process' log instead.

        Before the database was opened there is neither.
        """
        if not self._is_open:
            return
        try:
            await self._carried_through(self._locked(lambda: self._store.note(entry, outcome, detail)))
        except StateUnavailable as unavailable:
            asked = f"{entry.action} of {entry.model} {entry.subject}".strip()
            logger.warning("%s (%s) could not be written into the event log: %s", asked, outcome, unavailable)

    async def log(self, model: str, limit: int, before: int | None) -> Sequence[Event]:
        """Return events of a model, the newest first."""
        return await asyncio.to_thread(self._store.log, model, limit, before)

    def state(self, model: str) -> ModelState:
        """Return the state of a model that requests see now; raises ModelNotFound."""
        if model not in self.models:
            raise ModelNotFound(model, sorted(self.models))
        return self.models[model]

    def revision(self, model: str) -> int:
        """Return the revision of a model that requests see now, 0 for one that is not known."""
        state = self.models.get(model)
        return 0 if state is None else state.revision

    async def refresh(self) -> None:
        """Read what has changed, if anything has."""
        async with self._writing:
            position = await asyncio.to_thread(self._store.position)
            if position != self._position:
                self._show(await asyncio.to_thread(self._store.read))
                self._position = position

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
        async with self._writing:
            return await asyncio.to_thread(work)

    async def _poll(self) -> None:
        was_reachable = True
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self.refresh()
            except StateUnavailable as error:
                if was_reachable:
                    logger.warning("%s Requests go on with what was decided last.", error)
                was_reachable = False
            else:
                was_reachable = True
