"""The prediction log's folder: complete files whose names sort by time, and a bound on their bytes.

Several gateways may share a folder without a lock. Each one deletes the oldest files before it writes. Two gateways
that write at the same moment may exceed the bound by one file; the next write corrects that.
"""

import contextlib
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

Kind = Literal["predictions", "feedback"]

# Kind, time of the first row, writer, and the file's number twice. Earlier versions merged files: there the two numbers
# are those of the first and the last file in it. Readers still need both.
NAME = re.compile(r"(predictions|feedback)-(\d{8}T\d{9}Z)-([0-9a-f]{8})-(\d{8,})-(\d{8,})\.parquet")
# A file that is still being written. Tools ignore hidden files. One that a killed gateway left behind counts as a file
# of the log, so it goes when its turn comes.
PARTIAL = ".{}.partial"
LEAST_FILES = 16  # of a full log: rotation deletes at most a sixteenth of it at once
FILE_MODE, FOLDER_MODE = 0o640, 0o750  # whoever reads an id can give feedback with it


def file_name(kind: Kind, at: float, writer: str, number: int) -> str:
    """Return the name of a writer's next file, whose first row is of `at`, in seconds since 1970."""
    moment = datetime.fromtimestamp(at, UTC)
    stamp = f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1000:03d}Z"
    return f"{kind}-{stamp}-{writer}-{number:08d}-{number:08d}.parquet"


class LogFolder:
    """Holds at most `max_bytes` of files. Everything here blocks; all errors are OSError."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes

    def place(self, name: str, content: memoryview) -> None:
        """Add a file, complete and on disk or not at all. Delete the oldest files first if it needs their room."""
        self.path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        self._make_room(content.nbytes)
        partial = self.path / PARTIAL.format(name)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with os.fdopen(os.open(partial, flags, FILE_MODE), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # before the name: a power failure leaves no file without its end
            partial.rename(self.path / name)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _make_room(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise OSError(f"{num_bytes} bytes are more than the whole log may have")
        files = self._files()
        excess = sum(file_bytes for *_, file_bytes in files) + num_bytes - self._max_bytes
        for _, name, file_bytes in files:
            if excess <= 0:
                return
            (self.path / name).unlink(missing_ok=True)
            excess -= file_bytes

    def _files(self) -> list[tuple[str, str, int]]:
        """Return time, name and bytes of each file of the log, the oldest first."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if match := NAME.fullmatch(entry.name.removeprefix(".").removesuffix(".partial")):
                    with contextlib.suppress(FileNotFoundError):  # another gateway has just deleted it
                        found.append((match[2], entry.name, entry.stat().st_size))
        return sorted(found)
