"""One process at a time in a folder; the lock dies with its process, however that dies."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.errors import SettingError

NAME = ".lock"


@contextmanager
def held(folder: Path, option: str) -> Iterator[None]:
    """Hold the folder, made if it is missing, against other processes.

    Raises SettingError, naming the option and the folder, if another one holds it or it cannot be written.
    It is POSIX's lock: what is forked, to read images ahead, say, does not hold it for longer than this process lives.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / NAME).open("w")
    except OSError as error:
        raise SettingError(f"{option}: {folder} cannot be written: {error.strerror}") from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise SettingError(f"{option}: another process is at work in {folder}") from error
        yield
