"""Ends a gateway whose event loop hangs, so that whatever started it starts another one.

Two things look, because each is blind for what the other sees:

- A thread counts its own turns since the event loop's last one, not the time. A machine that is suspended, a process
  that is stopped or one that gets no processor lets neither turn, and a clock that jumps is not asked.
- A timer of the kernel counts the process's CPU time since then. It rings even where C code holds Python's lock for
  ever, as a regular expression may, so that no thread can turn.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

logger = logging.getLogger(__name__)

NUM_TURNS = 20  # of the thread without one of the loop
EXIT_STATUS = 70  # EX_SOFTWARE of sysexits.h
CPU_FACTOR = 2  # threads beside the loop use CPU time, too
LAST_WORDS_SECONDS = 10
STDERR = 2  # the real one: who captures sys.stderr may have no descriptor


class Watchdog:
    """Watches the running event loop while it is entered; 0 seconds end nothing.

    `on_turn` is called by the loop, at least every `turn_seconds`.
    """

    def __init__(self, seconds: float, on_turn: Callable[[], None], turn_seconds: float) -> None:
        self._seconds = seconds
        self._on_turn = on_turn
        self._turn_seconds = min(seconds / NUM_TURNS, turn_seconds) if seconds else turn_seconds
        self._num_turns = 0  # of the loop
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    async def __aenter__(self) -> Self:
        if not faulthandler.is_enabled():
            faulthandler.enable(STDERR)  # a supervisor's SIGABRT shows the stacks, too
        self._task = asyncio.get_running_loop().create_task(self._turn())
        if self._seconds:
            # Its action is chained: the process ends by this signal once the stacks are written.
            faulthandler.register(signal.SIGVTALRM, STDERR, all_threads=True, chain=True)
            self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _turn(self) -> None:
        while True:
            self._num_turns += 1
            if self._seconds:
                signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds * CPU_FACTOR)
            self._on_turn()
            await asyncio.sleep(self._turn_seconds)

    # In the watchdog's own thread

    def _watch(self) -> None:
        seen, num_turns_without = 0, 0
        num_allowed = round(self._seconds / self._turn_seconds)
        while not self._is_over.wait(self._turn_seconds):
            if self._num_turns != seen:
                seen, num_turns_without = self._num_turns, 0
                continue
            num_turns_without += 1
            if num_turns_without >= num_allowed:
                self._end()

    def _end(self) -> None:
        # What hangs may hold the log's lock, or nobody reads the pipe: then the kernel's alarm ends the process.
        signal.setitimer(signal.ITIMER_REAL, LAST_WORDS_SECONDS)
        logger.critical(
            "the watchdog ends the gateway: its event loop has not turned for %g s (TORCHGATE_WATCHDOG_SECONDS); the "
            "stack of every thread follows",
            self._seconds,
        )
        flush_log()
        faulthandler.dump_traceback(STDERR, all_threads=True)
        os._exit(EXIT_STATUS)


def flush_log() -> None:
    """Wait until the log is written, before this process ends without Python's own end."""
    for handler in logging.getLogger().handlers:
        handler.flush()
