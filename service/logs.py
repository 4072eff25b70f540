"""JSON lines on standard error: one object per line, times in UTC."""

import asyncio
import contextlib
import json
import logging
import logging.config
import sys
import time
from typing import Any

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S+0000"
_encode = json.JSONEncoder().encode
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class AccessLog:
    """One line per request, of the same form as all others, written once per turn of the event loop.

    The logging package takes longer over a line than the gateway over the rest of a small request.
    """

    def __init__(self, level: str) -> None:
        self._level = LEVELS[level]
        self._lines: list[str] = []
        self._second = 0
        self._time = ""

    def is_enabled_for(self, level: str) -> bool:
        """Tell whether lines of this level are shown."""
        return LEVELS[level] >= self._level

    def write(self, level: str, fields: dict[str, Any]) -> None:
        """Take a line; it is on standard error before the event loop waits for anything."""
        now = int(time.time())
        if now != self._second:
            self._second, self._time = now, time.strftime(TIME_FORMAT, time.gmtime(now))
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._flush)
        head = f'{{"time": "{self._time}", "level": "{level.upper()}", "logger": "service.access", '
        self._lines.append(f'{head}"message": "request", {_encode(fields)[1:]}')

    def _flush(self) -> None:
        lines, self._lines = self._lines, []
        with contextlib.suppress(OSError, ValueError):  # standard error is gone; requests go on
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()


def configure_logging(level: str) -> None:
    """Send every logger's lines of at least `level` to standard error as JSON."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "json": {
                    "()": "pythonjsonlogger.json.JsonFormatter",
                    "fmt": "%(asctime)s %(levelname)s %(name)s %(message)s",
                    "rename_fields": {"asctime": "time", "levelname": "level", "name": "logger"},
                    "datefmt": "%Y-%m-%dT%H:%M:%S%z",
                }
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
            "root": {"level": level.upper(), "handlers": ["stderr"]},
            # Libraries speak up only when something is wrong; one line per request is our own.
            "loggers": {name: {"level": "WARNING"} for name in ("httpx", "httpcore", "asyncio", "uvicorn")},
        }
    )
