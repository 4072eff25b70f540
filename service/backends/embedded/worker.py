"""One worker: a process and its socket, what it is doing, and the batches that lie with it."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from service.backends.embedded.archive import Unpacked
from service.backends.embedded.connection import Connection
from service.backends.embedded.process import Launcher, Process
from service.backends.embedded.wire import WorkerAnswer, pack_load
from service.errors.gateway import BackendError, BackendFailed, BackendTimeout, BackendUnavailable, WorkerDied

# The names are TorchServe's.
State = Literal["loading", "ready", "unloading", "stopped"]
Ending = Literal["died", "timeout", "answer", "memory", "closed"]

# One that runs and the next one: the worker finds it in its socket and never idles in between.
BATCHES_PER_WORKER = 2
LAST_WORDS_SECONDS = 1.0
EXIT_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class WorkerRequest:
    """One command on its way to an answer."""

    number: int
    pieces: Sequence[bytes]
    timeout_seconds: float  # from when it is the first in its worker
    expected_seconds: float  # that it should keep its worker; 0 where nobody knows
    future: "asyncio.Future[WorkerAnswer]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, error: BackendError) -> None:
        """WorkerAnswer whoever still waits with an error."""
        if not self.future.done():
            self.future.set_exception(error)


class Worker:
    """Started, loaded once, given batches, ended; `on_change` is called whenever it may take more or has gone."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self._process = Process(launcher, folder, self._exited)
        self._connection: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None  # rings when the first batch may be late, or before
        self._rings_at = 0.0
        self._load: asyncio.Future[WorkerAnswer] | None = None
        self._in_flight: deque[WorkerRequest] = deque()
        self._socket_ended = False
        self.state: State = "loading"
        self.first_since = 0.0  # when the batch that runs became the first
        self.ready_since = 0.0
        self.loaded_bytes = 0
        self.description: dict[str, Any] = {}
        self.ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.on_change: Callable[[], None] = lambda: None
        self.hand_on: Callable[[list[WorkerRequest]], None] = lambda _: None  # takes batches that were not started

    def start(self) -> None:
        """Start the process; it imports torch and waits for a command.

        Raises:
            BackendUnavailable: the system does not start it.
        """
        try:
            end = self._process.start()
        except OSError as error:
            self._end("died")
            raise BackendUnavailable(f"a worker cannot be started: {error}") from error
        self._connection = Connection(end, self._answered, self._connection_ended)
        self._connection.start()

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Tell whether its process and its socket are there."""
        return self._connection is not None and not self._socket_ended and not self._process.exited.is_set()

    @property
    def num_in_flight(self) -> int:
        """Return how many batches lie with it."""
        return len(self._in_flight)

    @property
    def precedence(self) -> tuple[int, float]:
        """Return what is least for the worker that should get the next batch.

        Of idle ones the last that worked, whose caches and core are warm; else the one that should be free first. One
        that should have been free long ago may be stuck: it is taken to need as much again as it is late.
        """
        if not self._in_flight:
            return 0, -self.first_since
        expected_end = self.first_since + sum([batch.expected_seconds for batch in self._in_flight])
        return 1, abs(expected_end - time.monotonic())

    @property
    def takes_batches(self) -> bool:
        """Tell whether it can take a batch now or after those it has."""
        return self.state == "ready"

    @property
    def has_room(self) -> bool:
        """Tell whether it can take a batch now; while one still leaves the gateway, a second would only cost memory."""
        return (
            self.state == "ready"
            and len(self._in_flight) < BATCHES_PER_WORKER
            and self._connection is not None
            and not self._connection.is_full
        )

    def memory_bytes(self) -> int:
        """Return the resident memory of its process."""
        return self._process.memory_bytes()

    async def load(self, model: str, archive: Unpacked, description: WorkerRequest) -> None:
        """Have it load an archive and describe itself; then it is ready. The caller limits the time.

        Raises:
            BackendFailed: it cannot; the message has the reason.
        """
        assert self._connection is not None
        self._load = asyncio.get_running_loop().create_future()
        self._connection.send([pack_load(model, str(archive.folder), archive.handler)])
        if not self.is_running:
            raise BackendFailed(self.exit_reason)
        loaded = await self._load
        if loaded.code != 200:
            raise BackendFailed(f"{model} cannot be loaded: {loaded.message}")
        self.send(description)
        described = await description.future
        try:
            document = json.loads(described.body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise BackendFailed(f"{model} does not describe itself: {described.message} {described.body[:200]!r}")
        self.description = document
        self.loaded_bytes = self.memory_bytes()
        self.ready_since = time.monotonic()
        self.state = "ready"

    def send(self, batch: WorkerRequest) -> None:
        """Give it a batch."""
        assert self._connection is not None
        self._in_flight.append(batch)
        if len(self._in_flight) == 1:
            self._first_begins()
        self._connection.send(batch.pieces)

    def retire(self, why: Ending, stop: bool = True) -> None:
        """Have it replaced; it gets no more from now on, or, without `stop`, until it is finished with."""
        if self.state == "ready" and stop:
            self.state = "unloading"
        if not self.ended.done():
            self.ended.set_result(why)

    async def finish(self, seconds: float) -> None:
        """Retire it, wait at most so long for its batches, then end it."""
        self.retire("closed")
        waiting = [batch.future for batch in self._in_flight if not batch.future.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=seconds)
        await self.close()

    async def close(self) -> None:
        """Let it see its socket close, kill it when it takes long; afterwards nothing of it is left."""
        self._end("closed")
        if not self.pid:
            return
        try:
            async with asyncio.timeout(EXIT_SECONDS if self.description else 0):
                await self._process.exited.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.exited.wait()
        except asyncio.CancelledError:
            self._process.kill()
            raise

    def kill(self, why: Ending = "died") -> None:
        """End it at once: its first batch fails, those behind it are handed on."""
        self._process.kill()
        self._end(why)

    def _first_begins(self) -> None:
        """Have it looked at when it may be late; a timer that rings before will find out by itself.

        Setting and cancelling one for each batch costs as much as sending a small one.
        """
        self.first_since = time.monotonic()
        late_at = self.first_since + self._in_flight[0].timeout_seconds
        if self._timer is not None:
            if self._rings_at <= late_at:
                return
            self._timer.cancel()
        self._look_at(late_at)

    def _look_at(self, late_at: float) -> None:
        self._rings_at = late_at
        seconds = max(late_at - time.monotonic(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look_whether_late)

    def _look_whether_late(self) -> None:
        """If its limit has passed, end it; an event loop that was held up may not have come to read the answer yet."""
        assert self._connection is not None
        self._timer = None
        if self._is_first_late():
            self._connection.read_now()
        if self._timer is not None or not self._in_flight:
            return
        batch = self._in_flight[0]
        if self._is_first_late():
            batch.fail(BackendTimeout(round(batch.timeout_seconds * 1000)))
            self.kill("timeout")
        else:
            self._look_at(self.first_since + batch.timeout_seconds)

    def _is_first_late(self) -> bool:
        return bool(self._in_flight) and time.monotonic() >= self.first_since + self._in_flight[0].timeout_seconds

    def _answered(self, answer: WorkerAnswer) -> None:
        if answer.request is None:
            if self._load is not None and not self._load.done():
                self._load.set_result(answer)
            return
        if not self._in_flight or self._in_flight[0].number != answer.request:
            self._lost(f"it answered {answer.request}, which was not asked", "answer")
            return
        batch = self._in_flight.popleft()
        if self._in_flight:
            self._first_begins()
        if not batch.future.done():
            batch.future.set_result(answer)
        self.on_change()

    def _connection_ended(self, wrong: str) -> None:
        """Its socket closed, or what came out of it was wrong: it is of no use any more."""
        self._socket_ended = True
        if not wrong:
            # It is about to exit; its status is worth a short wait.
            asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._process.kill)
            self._exited()
        else:
            self._lost(wrong, "answer")

    def _exited(self) -> None:
        """Once its process is gone and all that it answered is read, say how it ended."""
        self.state = "stopped"
        if self._process.exited.is_set():
            if self._socket_ended:
                self._lost(self.exit_reason, "died")
            else:  # its answers are still to be read, and its socket may be held by something that it started
                asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._lost, self.exit_reason, "died")

    def _lost(self, reason: str, why: Ending) -> None:
        if self._in_flight:
            self._in_flight[0].fail(BackendFailed(reason) if why == "answer" else WorkerDied(reason))
        if self._load is not None and not self._load.done():
            self._load.set_exception(BackendFailed(reason))
        self.kill(why)

    @property
    def exit_reason(self) -> str:
        """Say how it ended."""
        said = self._process.output.last_line
        return f"worker {self.pid}: {self._process.status}" + (f", last words: {said[:300]}" if said else "")

    def _end(self, why: Ending) -> None:
        """Close the socket; fail what runs, hand on what does not."""
        self.state = "stopped"
        self._socket_ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._connection.close()
        if self._load is not None and not self._load.done():
            self._load.set_exception(BackendUnavailable("its worker was stopped"))
        if self._in_flight:
            first, *others = self._in_flight
            self._in_flight.clear()
            first.fail(BackendUnavailable("its worker was stopped"))
            self.hand_on([batch for batch in others if not batch.future.done()])
        if not self.ended.done():
            self.ended.set_result(why)
        self.on_change()
