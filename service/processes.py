"""Several gateway processes on one port: the one above starts, replaces and stops them, and adds up their metrics."""

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from service.exposition import expose
from service.families import Families, counted, merged, registry_of, unpacked, without_the_gone
from service.hub import receive, send
from service.settings import Settings

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 8.0
STEADY_SECONDS = 10.0  # who ran for so long is restarted at once again
EXTRA_SECONDS = 10.0  # that a process gets to end beyond its drain
TELL_TIMEOUT_SECONDS = 1.0  # for what a process has counted; after that, what it told last counts


class Processes:
    """The processes of one gateway."""

    def __init__(self, settings: Settings, listener: socket.socket, on_serving: Callable[[], None]) -> None:
        self._on_serving = on_serving  # called once, when the first of them answers
        self._settings = settings
        self._listener = listener
        self._members: list[_Member] = []
        self._departed: Families = {}
        self._stop = asyncio.Event()
        self._status = 0
        self._has_served = False

    def run(self) -> int:
        """Serve until a signal says stop; return the exit status, which is not 0 if no process could start."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        keepers = [asyncio.create_task(self._keep()) for _ in range(self._settings.processes)]
        await asyncio.gather(*keepers)
        logger.info("all %d processes of torchgate have stopped", self._settings.processes)
        return self._status

    async def _keep(self) -> None:
        """Have one process run, again and again, until it is time to stop."""
        pause = FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                member = await self._start()
            except OSError as error:
                if not self._has_served:
                    raise
                logger.error("a process of torchgate cannot be started, which is tried again: %s", error)  # noqa: TRY400
                pause = await self._pause(pause)
                continue
            exited = asyncio.create_task(member.process.wait())
            stopped = asyncio.create_task(self._stop.wait())
            await asyncio.wait({exited, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if self._stop.is_set():
                await self._end(member, exited)
            await member.heard
            self._members.remove(member)
            self._departed = merged([self._departed, counted(member.counts)])
            if self._stop.is_set():
                return
            status = await exited
            if not self._has_served:
                logger.error("a process of torchgate cannot start (status %d)", status)
                self._status = status if status > 0 else 1
                self._stop.set()
                return
            logger.warning("a process of torchgate has ended (status %d) and is replaced", status)
            pause = await self._pause(FIRST_PAUSE_SECONDS if time.monotonic() - started > STEADY_SECONDS else pause)

    async def _pause(self, seconds: float) -> float:
        """Wait so long, unless it is time to stop; return how long to wait the next time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
        return min(2 * seconds, LONGEST_PAUSE_SECONDS)

    async def _start(self) -> "_Member":
        ours, theirs = socket.socketpair()
        with theirs:
            fds = self._listener.fileno(), theirs.fileno()
            # In a session of its own: Ctrl-C is for the process above, which tells the others.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "service.member", *map(str, fds)), pass_fds=fds, start_new_session=True
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        member = _Member(process, reader, writer)
        member.heard = asyncio.create_task(self._hear(member))
        self._members.append(member)
        return member

    async def _end(self, member: "_Member", exited: asyncio.Task[int]) -> None:
        with suppress(ProcessLookupError):
            member.process.terminate()
        _, late = await asyncio.wait({exited}, timeout=self._settings.drain_seconds + EXTRA_SECONDS)
        if late:
            logger.warning("process %d does not end and is killed", member.process.pid)
            member.process.kill()
            await exited

    async def _hear(self, member: "_Member") -> None:
        """Take in what a process says, until it has gone."""
        pages: set[asyncio.Task[None]] = set()
        while (message := await receive(member.reader)) is not None:
            match message:
                case ["counts", number, families]:
                    if not self._has_served:
                        self._has_served = True
                        self._on_serving()
                    member.counts = unpacked(families)
                    if (future := member.asked.get(number)) is not None and not future.done():
                        future.set_result(None)
                case ["page", number, accept, families]:
                    member.counts = unpacked(families)
                    pages.add(task := asyncio.create_task(self._answer(member, number, accept)))
                    task.add_done_callback(pages.discard)
        for future in member.asked.values():
            future.cancel()
        await asyncio.gather(*pages, return_exceptions=True)
        member.writer.close()

    async def _answer(self, member: "_Member", number: int, accept: str) -> None:
        """Send a process the page of all."""
        others = [each for each in self._members if each is not member and each.counts]
        if others:
            await asyncio.wait({asyncio.create_task(each.tell()) for each in others}, timeout=TELL_TIMEOUT_SECONDS)
        alive = [each.counts for each in self._members]
        families = merged([without_the_gone(self._departed, alive), *alive])
        body, content_type = await expose(registry_of(families), accept)
        send(member.writer, ["page", number, body.decode(), content_type])


class _Member:
    """One process and what it has told."""

    heard: asyncio.Task[None]

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self.reader = reader
        self.writer = writer
        self.counts: Families = {}
        self.asked: dict[int | None, asyncio.Future[None]] = {}
        self._numbers = count()

    async def tell(self) -> None:
        """Return when it has told what it has counted by now."""
        number = next(self._numbers)
        future = self.asked[number] = asyncio.get_running_loop().create_future()
        try:
            send(self.writer, ["tell", number])
            with suppress(TimeoutError):
                await asyncio.wait_for(future, TELL_TIMEOUT_SECONDS)
        finally:
            del self.asked[number]
