"""One worker: a process, its socket, and the batches that it was given.

    loading -> ready -> unloading -> stopped        (the names are TorchServe's)

The pool calls a worker and awaits its futures. A worker never calls the pool.
"""

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from service.backends.embedded.archive import Unpacked
from service.backends.embedded.connection import Connection
from service.backends.embedded.process import Launcher, Process
from service.backends.embedded.wire import WorkerAnswer, pack_load, pack_request
from service.errors.gateway import BackendError, BackendFailed, BackendTimeout, BackendUnavailable, WorkerDied

WorkerState = Literal["loading", "ready", "unloading", "stopped"]
ExitCause = Literal["died", "timeout", "answer", "memory", "closed"]

DESCRIBE = (("describe", "True"),)
LAST_WORDS_SECONDS = 1.0
EXIT_SECONDS = 2.0
MOST_BATCHES = 1000  # more than a worker ever has
NEWEST_WEIGHT = 0.25  # of the last batch, in the moving average of seconds per item


class NotStartedError(Exception):
    """The worker ended before it began with this batch: another worker can take it."""


@dataclass(slots=True, eq=False)
class WorkerRequest:
    """One command on its way to an answer."""

    number: int | None  # None of a load
    num_items: int
    timeout_seconds: float
    late_at: float  # when its caller stops waiting
    is_large: bool = False  # it takes far longer than others
    future: "asyncio.Future[WorkerAnswer]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, error: BackendError | NotStartedError) -> None:
        """Raise an error in the caller, if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)


class Worker:
    """Started, loaded once, given batches, ended; `ended` then has the cause."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self.process = Process(launcher, folder, self._exited)
        self._timer: asyncio.TimerHandle | None = None  # rings when a batch may be late, or before
        self._rings_at = 0.0
        self.in_flight: deque[WorkerRequest] = deque()  # one runs, the others wait in its socket
        self._num_requests = 0
        self._first_since = 0.0  # when the first batch in flight became the first
        self._seconds_per_item = 0.0  # a moving average of what its batches took
        self.state: WorkerState = "loading"
        self.ready_since = 0.0
        self.loaded_bytes = 0
        self.description: dict[str, Any] = {}
        self.ended: asyncio.Future[ExitCause] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Start the process; it imports torch and waits for a command. BackendUnavailable if the system refuses."""
        try:
            end = self.process.start()
        except OSError as error:
            raise BackendUnavailable(f"a worker cannot be started: {error}") from error
        self._connection = Connection(end, self._answered, self._connection_ended)
        self._connection.start()

    @property
    def is_running(self) -> bool:
        """Tell whether its process and its socket are there."""
        return self._connection.is_open and not self.process.exited.is_set()

    @property
    def exit_reason(self) -> str:
        """Say how its process ended, with its last line of output."""
        said = self.process.output.last_line
        return f"worker {self.process.pid}: {self.process.status}" + (f", last words: {said[:300]}" if said else "")

    def precedence(self) -> tuple[int, float]:
        """Return a key: the worker with the smallest one should get the next batch.

        That is the one with the fewest batches. Of idle workers the last one that worked is best, because its caches
        are warm. Of busy workers the one that should be free first is best. A worker that should have been free long
        ago may be stuck: it is expected to need as much time again as it is late. One with a large image comes last.
        """
        if not self.in_flight:
            return 0, -self._first_since
        if any(request.is_large for request in self.in_flight):
            return MOST_BATCHES, len(self.in_flight)
        num_items = sum([request.num_items for request in self.in_flight])
        expected_end = self._first_since + num_items * self._seconds_per_item
        return len(self.in_flight), abs(expected_end - time.monotonic())

    async def load(self, model: str, archive: Unpacked, timeout_seconds: float) -> None:
        """Load an archive and have the handler describe itself, then be ready; BackendFailed says why it cannot."""
        request = WorkerRequest(None, 0, timeout_seconds, time.monotonic() + timeout_seconds)
        self.in_flight.append(request)
        self._connection.send([pack_load(model, str(archive.folder), archive.handler)])
        if not self.is_running:
            raise BackendFailed(self.exit_reason)
        try:
            async with asyncio.timeout(timeout_seconds):
                loaded = await request.future
                if loaded.code != 200:
                    raise BackendFailed(f"{model} cannot be loaded: {loaded.message}")
                described = await self.send((), DESCRIBE, timeout_seconds)
        except WorkerDied as error:
            raise BackendFailed(error.reason) from error
        except TimeoutError as error:
            raise BackendFailed(f"a worker did not load {model} within {timeout_seconds:g} s") from error
        try:
            document = json.loads(described.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise BackendFailed(f"{model} does not describe itself: {described.message} {described.body[:200]!r}")
        self.description = document
        self.loaded_bytes = self.process.memory_bytes()
        self.ready_since = time.monotonic()
        self.state = "ready"

    def send(
        self,
        items: Sequence[tuple[str, bytes]],
        headers: Sequence[tuple[str, str]],
        timeout_seconds: float,
        *,
        is_large: bool = False,
    ) -> "asyncio.Future[WorkerAnswer]":
        """Send one batch at once, behind those in flight; return the future of its answer.

        The worker finds the next batch in its socket when it has answered one, so it never idles in between. The
        future fails with BackendTimeout after `timeout_seconds`. If this batch alone kept the worker for that long,
        the worker is killed. A future that is cancelled only discards the answer.
        """
        now = time.monotonic()
        self._num_requests += 1
        request = WorkerRequest(self._num_requests, len(items), timeout_seconds, now + timeout_seconds, is_large)
        self.in_flight.append(request)
        if len(self.in_flight) == 1:
            self._first_since = now
        if self._timer is None or request.late_at < self._rings_at:
            self._ring_at(request.late_at)
        self._connection.send(pack_request(self._num_requests, items, headers))
        return request.future

    def retire(self, cause: ExitCause, *, stop: bool = True) -> None:
        """Ask the pool to replace it. With `stop` it gets no more batches; without, until its successor is ready."""
        if self.state == "ready" and stop:
            self.state = "unloading"
        if not self.ended.done():
            self.ended.set_result(cause)

    async def finish(self, drain_seconds: float) -> None:
        """Retire it, wait at most `drain_seconds` for its batches, then end it."""
        self.retire("closed")
        if unanswered := [each.future for each in self.in_flight if each.num_items and not each.future.done()]:
            await asyncio.wait(unanswered, timeout=drain_seconds)
        await self.close()

    async def close(self) -> None:
        """Close its socket, which ends it; kill it if that takes long. Afterwards nothing of it is left."""
        self._end("closed")
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_SECONDS if self.description else 0):
                    await self.process.exited.wait()
        finally:
            self.process.kill()
        await self.process.exited.wait()

    def _ring_at(self, moment: float) -> None:
        """Check for late batches at that moment.

        One timer serves many batches: setting and cancelling one for each costs as much as sending a small batch.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = moment
        seconds = max(moment - time.monotonic(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_limits)

    def _check_limits(self) -> None:
        """Fail the batches that are late; kill the worker if the first of them kept it for its whole limit."""
        self._timer = None
        self._connection.read_now()  # a busy event loop may not have read an answer yet
        if not self.in_flight:
            return
        now = time.monotonic()
        first = self.in_flight[0]
        if now >= self._first_since + first.timeout_seconds:
            first.fail(BackendTimeout(round(first.timeout_seconds * 1000)))
            self.process.kill()
            self._end("timeout")
            return
        for request in self.in_flight:
            if now >= request.late_at:
                request.fail(BackendTimeout(round(request.timeout_seconds * 1000)))
        limits = [request.late_at for request in self.in_flight if not request.future.done()]
        self._ring_at(min([self._first_since + first.timeout_seconds, *limits]))

    def _answered(self, answer: WorkerAnswer) -> None:
        if not self.in_flight or self.in_flight[0].number != answer.request:
            self._lost(f"it answered {answer.request}, which was not asked", "answer")
            return
        request = self.in_flight.popleft()
        now = time.monotonic()
        if request.num_items and not request.is_large:
            newest = (now - self._first_since) / request.num_items
            before = self._seconds_per_item or newest
            self._seconds_per_item = before + NEWEST_WEIGHT * (newest - before)
        if self.in_flight:
            self._first_since = now
        if not request.future.done():
            request.future.set_result(answer)

    def _connection_ended(self, wrong: str) -> None:
        """Its socket closed, or sent something that is no answer: the worker is useless now."""
        if wrong:
            self._lost(wrong, "answer")
        else:  # It is about to exit; its status is worth a short wait.
            asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self.process.kill)
            self._exited()

    def _exited(self) -> None:
        """Once its process is gone and all its answers are read, say how it ended."""
        self.state = "stopped"
        if self.process.exited.is_set():
            if self._connection.is_open:  # its answers are still to be read; a process that it started may hold its end
                asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._lost, self.exit_reason, "died")
            else:
                self._lost(self.exit_reason, "died")

    def _lost(self, reason: str, cause: Literal["died", "answer"]) -> None:
        """Fail its first batch, or its load, and kill it."""
        if self.in_flight:
            self.in_flight[0].fail(WorkerDied(reason) if cause == "died" else BackendFailed(reason))
        self.process.kill()
        self._end(cause)

    def _end(self, cause: ExitCause) -> None:
        """Close the socket; the first batch fails, the others can go to another worker."""
        self.state = "stopped"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._connection.close()
        for index, request in enumerate(self.in_flight):
            request.fail(NotStartedError() if index else BackendUnavailable("its worker was stopped"))
        self.in_flight.clear()
        if not self.ended.done():
            self.ended.set_result(cause)
