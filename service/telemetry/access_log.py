"""The lines of requests: one JSON object per line, times in UTC."""

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S+0000"
_encode = json.JSONEncoder().encode
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
MOST_SLOW_LINES = 10  # a second: when all requests are slow, their lines must not make them slower
Fields = Callable[[], Mapping[str, Any]]  # called only for a line that is written
# Takes when a request came and when it was answered; returns where the time in between went, in milliseconds.
Breakdown = Callable[[float, float], Mapping[str, float]]


class AccessLog:
    """One line per request in the form of all others, written once per turn of the event loop.

    The logging package takes longer over a line than the gateway over the rest of a small request.
    """

    def __init__(self, level: str, slow_request_ms: int, write: Callable[[str], None]) -> None:
        self._write_lines = write
        self._level = LEVELS[level]
        self._slow_seconds = slow_request_ms / 1000 or math.inf
        self._slow_lines: float = MOST_SLOW_LINES  # that may still be written
        self._slow_at = time.monotonic()
        self._num_left_out = 0
        self._lines: list[str] = []
        self._second = 0
        self._time = ""

    def request(self, level: str, fields: Fields, breakdown: Breakdown | None, started: float, ended: float) -> None:
        """Write a request's line at `level`; at `warning`, with its breakdown, if it was slow."""
        slow = self._slow_fields(breakdown, started, ended)
        if slow:
            self._write("warning", "slow request", {**fields(), **slow})
        elif LEVELS[level] >= self._level:
            self._write(level, "request", fields())

    def _slow_fields(self, breakdown: Breakdown | None, started: float, ended: float) -> Mapping[str, float]:
        """Return the breakdown of a slow request, unless there were too many; nothing of any other.

        The client's upload time does not make a request slow.
        """
        seconds = ended - started
        if seconds < self._slow_seconds or breakdown is None or LEVELS["warning"] < self._level:
            return {}
        parts = breakdown(started, ended)
        if seconds - parts["read_ms"] / 1000 < self._slow_seconds:
            return {}
        earned = (ended - self._slow_at) * MOST_SLOW_LINES
        self._slow_at, self._slow_lines = ended, min(self._slow_lines + earned, MOST_SLOW_LINES)
        if self._slow_lines < 1:
            self._num_left_out += 1
            return {}
        self._slow_lines -= 1
        num_left_out, self._num_left_out = self._num_left_out, 0
        return {**parts, "num_left_out": num_left_out} if num_left_out else parts

    def _write(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        now = int(time.time())
        if now != self._second:
            self._second, self._time = now, time.strftime(TIME_FORMAT, time.gmtime(now))
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._flush)
        head = f'{{"time": "{self._time}", "level": "{level.upper()}", "logger": "service.access", '
        self._lines.append(f'{head}"message": "{message}", {_encode(fields)[1:]}')

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        self._write_lines("\n".join(lines) + "\n")
