"""Where all lines of the log go: to standard error, as JSON, by a thread, so that no reader can hold up the gateway."""

import contextlib
import logging
import logging.config
import os
import queue
import sys
import threading
import time

from prometheus_client import Counter

STDERR = 2
MOST_CHARACTERS = 4 * 1024 * 1024  # of lines that wait for the reader: seconds' worth of a busy gateway
# A thread that wrote each line at once would take Python's lock from the event loop for each: 10 % of a small request.
GATHER_SECONDS = 0.02
FLUSH_SECONDS = 2.0


class LogStream(logging.Handler):
    """Takes lines from loggers and the access log without ever waiting; what does not fit is dropped and counted.

    Its thread writes past sys.stderr, whose lock it would hold for ever when nobody reads, the interpreter's end
    included.
    """

    def __init__(self, descriptor: int = STDERR) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._waiting: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._adding = threading.RLock()
        self._num_added = self._num_written = 0  # characters; the thread alone counts the written ones
        self._num_dropped = self._num_untold = 0  # records
        self._counter: Counter | None = None
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def count_into(self, counter: Counter) -> None:
        """Count dropped records, earlier ones included."""
        with self._adding:
            counter.inc(self._num_dropped)
            self._counter = counter

    def emit(self, record: logging.LogRecord) -> None:
        """Take a logger's record."""
        try:
            self.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - as every handler of the standard library
            self.handleError(record)

    def write(self, text: str) -> None:
        """Take whole lines, each a record."""
        with self._adding:
            if self._num_added - self._num_written + len(text) > MOST_CHARACTERS:
                self._drop(text)
                return
            if self._num_untold:
                text = self._told_of_dropped() + text
            self._num_added += len(text)
            self._waiting.put(text)

    def flush(self) -> None:
        """Return once everything so far is written, or after a moment if nobody reads. Blocks."""
        is_written = threading.Event()
        self._waiting.put(is_written)
        is_written.wait(FLUSH_SECONDS)

    def _drop(self, text: str) -> None:
        num_records = text.count("\n")
        self._num_dropped += num_records
        self._num_untold += num_records
        if self._counter is not None:
            self._counter.inc(num_records)

    def _told_of_dropped(self) -> str:
        """Return the line that tells of a gap in the log."""
        told = "%d lines are missing here: the reader of standard error took them too slowly, or not at all"
        fields = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "msg": told}
        line = self.format(logging.makeLogRecord({**fields, "args": (self._num_untold,)}))
        self._num_untold = 0
        return line + "\n"

    # In its own thread

    def _write(self) -> None:
        while True:
            items = [self._waiting.get()]
            time.sleep(GATHER_SECONDS)
            while not self._waiting.empty():
                items.append(self._waiting.get())
            text = "".join(item for item in items if isinstance(item, str))
            rest = memoryview(text.encode(errors="backslashreplace"))
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:  # nobody will ever read it; requests go on
                with self._adding:
                    self._drop(text)
            self._num_written += len(text)
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()


class StandardError:
    """Writes at once, and waits for the reader: for an application that no command runs."""

    def write(self, text: str) -> None:
        """Write whole lines."""
        with contextlib.suppress(OSError, ValueError):  # standard error is gone; requests go on
            sys.stderr.write(text)
            sys.stderr.flush()

    def count_into(self, counter: Counter) -> None:
        """Do nothing: nothing is dropped."""


STANDARD_ERROR = StandardError()


def configure_logging(level: str, stream: LogStream) -> None:
    """Send every logger's lines of at least `level`, and Python's warnings, to `stream` as JSON."""
    logging.captureWarnings(capture=True)
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
            "handlers": {"stream": {"()": lambda: stream, "formatter": "json"}},
            "root": {"level": level.upper(), "handlers": ["stream"]},
            # Libraries speak up only when something is wrong; one line per request is our own.
            "loggers": {
                **{name: {"level": "WARNING"} for name in ("httpx", "httpcore", "asyncio", "uvicorn")},
                "opentelemetry": {"level": "ERROR"},  # it warns of every attempt to reach a collector
            },
        }
    )
