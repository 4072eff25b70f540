"""Where an old and a new gateway meet: a unix socket in a folder of this user alone.

    new ──status──> old      which versions must the new one have ready before it may go on?
    new ──take────> old      the listening sockets themselves (SCM_RIGHTS); both take connections from now on
    new ──serving─> old      the old one stops listening, drains and exits

A listening socket stays the same object in the kernel, so no connection that waits in its queue is lost. If the new
gateway ends before `serving`, the old one goes on alone. Each asks the kernel who the other one is.
"""

import contextlib
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from service.config.settings import Settings

STATUS, TAKE, SERVING = "status", "take", "serving"
MOST_BYTES = 65536
MOST_SOCKETS = 16
LONGEST_HOST = 60  # in the name
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


@dataclass(frozen=True)
class MeetingPlace:
    """A folder, and the name of the unix socket in it."""

    folder: Path
    name: str

    @property
    def path(self) -> Path:
        """Return the path for people."""
        return self.folder / self.name

    @contextlib.contextmanager
    def entered(self) -> Iterator[Path]:
        """Give a short path to the folder; raises OSError unless it is a folder that this user alone may enter."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise PermissionError(f"{self.folder} must belong to this user and have mode 0700")
            # What was checked is what is used. And the path of a unix socket may have 107 bytes only.
            yield Path(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)


def meeting_place(settings: Settings, port: int) -> MeetingPlace:
    """Return where the gateway that listens on the settings' host and on `port` can be met."""
    folder = settings.handover_dir or Path(tempfile.gettempdir()) / f"torchgate-{os.geteuid()}"
    host = settings.host.encode("ascii", "replace").decode().replace("/", "_")[-LONGEST_HOST:]
    return MeetingPlace(folder, f"{host}-{port}")


def new_connection() -> socket.socket:
    """Return a socket that keeps the bounds of messages."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end, as the kernel knows them."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid
