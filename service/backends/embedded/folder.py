"""The gateway's private folder for unpacked archives and its workers' temporary files.

A lock lies in it while its gateway lives, so that the next gateway finds the folder of one that was killed.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from service.errors.gateway import BackendUnavailable

PREFIX = "torchgate-workers-"
LOCK = "lock"
TEMPORARY = "tmp"  # the workers' temporary files


class PrivateFolder:
    """Created at its first use, for this user alone; `remove` deletes it."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = -1

    def path(self) -> Path:
        """Return the folder. Blocks on disk; BackendUnavailable if the system does not make it."""
        if self._path is None:
            try:
                self._path = folder = Path(tempfile.mkdtemp(prefix=PREFIX))
                (folder / TEMPORARY).mkdir(mode=0o700)
                # Locked before it has its name: a sweep never sees it unlocked.
                new = folder / f"{LOCK}.new"
                self._lock = os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                new.rename(folder / LOCK)
            except OSError as error:
                self.remove()
                raise BackendUnavailable(f"there is no room for the workers' files: {error}") from error
        return self._path

    def remove(self) -> None:
        """Delete it. Blocks on disk."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            if self._lock >= 0:
                os.close(self._lock)
            self._path, self._lock = None, -1


def sweep() -> list[Path]:
    """Delete this user's folders whose gateway is gone; return them. Blocks on disk."""
    swept = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another sweep, or a gateway that cleans up, was faster; or it is locked
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / LOCK, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                swept.append(folder)
            finally:
                os.close(lock)
    return swept
