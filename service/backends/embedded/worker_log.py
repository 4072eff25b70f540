"""Copies a worker's output into the gateway's log, line by line; the length and number of lines are bounded."""

import logging
import time
from collections import deque

logger = logging.getLogger(__name__)

LONGEST_LINE_BYTES = 4096
LINES_PER_SECOND = 200  # room for a long traceback
LINES_REMEMBERED = 20


class WorkerLog:
    """Splits bytes into lines, logs them, remembers the last ones."""

    def __init__(self) -> None:
        self.name = "worker"
        self._rest = b""
        self._skipping = False  # the end of a line that was too long
        self._window_started = 0.0
        self._num_in_window = 0
        self._num_left_out = 0
        self._last: deque[str] = deque(maxlen=LINES_REMEMBERED)

    @property
    def last_line(self) -> str:
        """Return the last line that is not blank; empty if there was none."""
        return next((line.strip() for line in reversed(self._last) if line.strip()), "")

    def feed(self, data: bytes) -> None:
        """Process output as it comes, in whole lines or not."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._say(line)
            self._skipping = False
        if len(self._rest) > LONGEST_LINE_BYTES:
            self._say(self._rest)
            self._rest, self._skipping = b"", True

    def end(self) -> None:
        """Log the rest, which has no end of line."""
        if self._rest:
            self._say(self._rest)
        self._admit_left_out()

    def _say(self, line: bytes) -> None:
        if self._skipping:
            return
        text = line[:LONGEST_LINE_BYTES].decode(errors="replace").rstrip()
        self._last.append(text)
        if (now := time.monotonic()) - self._window_started >= 1:
            self._admit_left_out()
            self._window_started, self._num_in_window = now, 0
        self._num_in_window += 1
        if self._num_in_window > LINES_PER_SECOND:
            self._num_left_out += 1
        else:
            logger.info("%s: %s", self.name, text)

    def _admit_left_out(self) -> None:
        if self._num_left_out:
            logger.warning("%s printed %d more lines, left out here", self.name, self._num_left_out)
            self._num_left_out = 0
