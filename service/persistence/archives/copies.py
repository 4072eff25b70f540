"""Copies of archives whose bytes were checked: what is loaded is the copy, and nobody else can write it.

A hash of the file in the model store would hold for the moment of reading only: another program may replace the file
between the check and the load, or any time before the next load.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from service.domain.archive import StoreError, TrustError
from service.domain.backend import VerifiedArchive

COPY_BYTES = 1024 * 1024
FICLONE = 0x40049409  # linux/fs.h: share the blocks until one of the two files is written (btrfs, XFS)
# What a file system answers that cannot share blocks, or not between these two files.
NO_CLONE = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EBADF}
SUFFIX = ".mar"
OURS = re.compile(
    rf"[0-9a-f]{{64}}-[0-9a-f]{{8}}{re.escape(SUFFIX)}"
)  # sha256, and a number that makes it the only one


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; raises StoreError. A pipe or a device would never end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"it cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:  # noqa: PTH123 - it is open already
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StoreError("it is not a regular file")
        yield file


def check(file: BinaryIO, sha256: str) -> None:
    """Raise StoreError unless the whole file has this hash; leaves the file at its start."""
    # Every open file has `readinto`; typing.BinaryIO does not know.
    _compare(hashlib.file_digest(file, "sha256").hexdigest(), sha256)  # type: ignore[arg-type]
    file.seek(0)


def private_copy(source: BinaryIO, sha256: str, stop: threading.Event) -> VerifiedArchive:
    """Return a verified copy without a name, for the embedded workers; it is gone once it is closed."""
    with _reporting(Path(tempfile.gettempdir())), ExitStack() as stack:
        copy = stack.enter_context(tempfile.TemporaryFile())
        _copy(source, copy, sha256, stop)
        return VerifiedArchive(copy, "", stack.pop_all().close)


def named_copy(source: BinaryIO, sha256: str, folder: Path, stop: threading.Event) -> VerifiedArchive:
    """Return a verified copy in `folder`, for TorchServe, under a name that begins with the sha256.

    The copy is locked while it is needed. Copies that nobody locks were left by a gateway that was killed: they go.
    """
    place = folder / f"{sha256}-{secrets.token_hex(4)}{SUFFIX}"
    with _reporting(folder), ExitStack() as stack:
        sweep(folder)
        copy = stack.enter_context(open(place, "x+b", opener=_private))
        stack.callback(_remove, place)  # before the file is closed, while it is locked
        fcntl.flock(copy, fcntl.LOCK_EX)
        _copy(source, copy, sha256, stop)
        os.fchmod(copy.fileno(), 0o444)  # TorchServe may run as another user
        return VerifiedArchive(copy, place.name, stack.pop_all().close)


def _remove(place: Path) -> None:
    with suppress(OSError):  # the next sweep removes it
        place.unlink()


def sweep(folder: Path) -> None:
    """Delete the copies that nobody locks, and no other file. Blocks on disk."""
    for place in folder.glob(f"*{SUFFIX}"):
        if not OURS.fullmatch(place.name):
            continue
        with suppress(OSError):  # it is locked, or its owner was faster
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                place.unlink()
            finally:
                os.close(descriptor)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _copy(source: BinaryIO, copy: BinaryIO, sha256: str, stop: threading.Event) -> None:
    """Copy while hashing, or share the blocks and hash the copy; leaves the copy at its start."""
    if _clone(source, copy):
        check(copy, sha256)
        return
    digest = hashlib.sha256()
    while part := source.read(COPY_BYTES):
        if stop.is_set():
            raise StoreError("copying was stopped")
        digest.update(part)
        copy.write(part)
    copy.flush()
    _compare(digest.hexdigest(), sha256)
    copy.seek(0)


def _clone(source: BinaryIO, copy: BinaryIO) -> bool:
    try:
        fcntl.ioctl(copy, FICLONE, source.fileno())
    except OSError as error:
        if error.errno in NO_CLONE:
            return False
        raise
    return True


def _compare(found: str, sha256: str) -> None:
    if found != sha256:
        raise TrustError(
            "tampered",
            f"its sha256 is {found}, the manifest says {sha256}; put the right file back, or archive it anew",
        )


@contextmanager
def _reporting(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = "the disk is full" if error.errno in {errno.ENOSPC, errno.EDQUOT} else error.strerror or str(error)
        raise StoreError(f"it cannot be copied into {folder}: {what}") from error
