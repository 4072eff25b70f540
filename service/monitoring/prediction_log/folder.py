"""The log's folder: whole files under names that say what is in them, and never more bytes than allowed.

A file's name says its kind, when its first row was answered, who wrote it, and which of that writer's files it holds:
the first and the last number. Files that were merged into one lie in that one's range and are worth nothing beside it.
"""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

Kind = Literal["predictions", "feedback"]

NAME = re.compile(r"(predictions|feedback)-(\d{8}T\d{9}Z)-([0-9a-f]{8})-(\d{8,})-(\d{8,})\.parquet")
# Readers pass over hidden files, and over what has another suffix.
PARTIAL = re.compile(r"\..*\.parquet\.partial")
LOCK_FILE = ".lock"
# Of a full log, at least: what rotates is a file, and merging needs room for its result beside what it is made of.
LEAST_FILES = 16
# Of every Parquet file; one that was not written to its end cannot be read at all.
END = b"PAR1"
FILE_MODE, FOLDER_MODE = 0o640, 0o750  # an id lets whoever reads it give feedback


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log, as its name and size tell it."""

    name: str
    num_bytes: int
    kind: str
    stamp: str  # in the order of time
    writer: str
    first: int
    last: int

    @property
    def num_parts(self) -> int:
        """Return how many files it holds the rows of."""
        return self.last - self.first + 1


def file_name(kind: Kind, at: float, writer: str, number: int) -> str:
    """Return the name of a writer's next file, whose first row is of `at`, in seconds since 1970."""
    moment = datetime.fromtimestamp(at, UTC)
    stamp = f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1000:03d}Z"
    return f"{kind}-{stamp}-{writer}-{number:08d}-{number:08d}.parquet"


def merged_name(files: Iterable[LogFile]) -> str:
    """Return the name of the file that holds the rows of these, which follow each other."""
    first, *_, last = files
    return f"{first.kind}-{first.stamp}-{first.writer}-{first.first:08d}-{last.last:08d}.parquet"


def superseded(files: Iterable[LogFile]) -> dict[LogFile, LogFile]:
    """Return the files whose rows another one has as well, each with that one."""
    found = {}
    covers: LogFile | None = None
    for file in sorted(files, key=lambda each: (each.kind, each.writer, each.first, -each.last)):
        if covers and (covers.kind, covers.writer) == (file.kind, file.writer) and file.last <= covers.last:
            found[file] = covers
        else:
            covers = file
    return found


class LogFolder:
    """A folder that several gateways of one machine may share. Everything here blocks; all errors are OSError."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes

    def files(self) -> list[LogFile]:
        """Return all files that are there, those that came first at the front."""
        with self._alone():  # else one may be missed, and another that was placed after it seen
            return self._files()

    def _files(self) -> list[LogFile]:
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if match := NAME.fullmatch(entry.name):
                    kind, stamp, writer, first, last = match.groups()
                    try:
                        num_bytes = entry.stat().st_size
                    except FileNotFoundError:
                        continue
                    found.append(LogFile(entry.name, num_bytes, kind, stamp, writer, int(first), int(last)))
        return sorted(found, key=lambda file: (file.stamp, file.name))

    def place(self, name: str, content: memoryview) -> None:
        """Put in a file, whole or not at all; the oldest ones go where there is no room for it.

        A gateway that is killed leaves it there. So that this takes no longer with a slow disk, `sync` is for later.
        """
        with self._alone():
            self._delete_partial()
            self._make_room(content.nbytes)
            partial = self.path / f".{name}.partial"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                with os.fdopen(os.open(partial, flags, FILE_MODE), "wb") as file:
                    file.write(content)
                partial.rename(self.path / name)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise

    def sync(self, names: Iterable[str]) -> None:
        """Return when these files, as far as they are still there, outlive the machine. Takes as long as the disk."""
        failed: OSError | None = None
        for name in names:
            try:
                _sync(self.path / name)
            except FileNotFoundError:
                continue
            except OSError as error:
                failed = error
        _sync(self.path)
        if failed is not None:
            raise failed

    def tidy(self) -> None:
        """Delete files whose rows another one has as well, once that one outlives the machine."""
        useless = superseded(self._files())
        if not useless:
            return
        self.sync({file.name for file in useless.values()})
        with self._alone():
            for file, other in superseded(self._files()).items():
                if useless.get(file) == other:
                    (self.path / file.name).unlink(missing_ok=True)

    def withdraw(self, name: str) -> None:
        """Delete a merged file that could not be synced, unless those that it was made of are gone.

        Syncing it again would succeed and mean nothing: the kernel tells of a failed write once.
        """
        with self._alone():
            if any(other.name == name for other in superseded(self._files()).values()):
                (self.path / name).unlink()

    def delete_torn(self) -> int:
        """Delete files without an end, which a machine that died has left; return how many there were."""
        num_torn = 0
        for file in self._files():
            with suppress(OSError):  # what cannot be read now may be another time
                if not self._has_end(file):
                    (self.path / file.name).unlink()
                    num_torn += 1
        return num_torn

    def _has_end(self, file: LogFile) -> bool:
        with (self.path / file.name).open("rb") as content:
            content.seek(max(file.num_bytes - len(END), 0))
            return content.read() == END

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep out other threads and gateways. The kernel takes the lock from who is killed."""
        self.path.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _make_room(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise OSError(f"{num_bytes} bytes are more than the whole log may have")
        files = self._files()
        excess = sum(file.num_bytes for file in files) + num_bytes - self._max_bytes
        for file in files:
            if excess <= 0:
                return
            (self.path / file.name).unlink(missing_ok=True)
            excess -= file.num_bytes

    def _delete_partial(self) -> None:
        """Delete what dead writers left half written."""
        for name in os.listdir(self.path):  # noqa: PTH208 - names are all that is wanted
            if PARTIAL.fullmatch(name):  # who writes one holds the lock
                (self.path / name).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
