"""systemd's two protocols: sockets that it opened for the gateway, and what the gateway tells it.

https://www.freedesktop.org/software/systemd/man/latest/sd_listen_fds.html and sd_notify.html
"""

import contextlib
import logging
import os
import socket
from collections.abc import MutableMapping, Sequence

from service.process.listening import PUBLIC, CannotListen, ListeningSocket

logger = logging.getLogger(__name__)

FIRST_DESCRIPTOR = 3
LONGEST_NUMBER = 18  # digits that fit into 64 bits


def inherited_sockets(environ: MutableMapping[str, str], names: Sequence[str]) -> Sequence[ListeningSocket]:
    """Return the sockets that systemd passed on, and remove its variables; raises CannotListen for unknown ones.

    `names` are those that the gateway has a use for (`FileDescriptorName=`). A single socket needs none.
    """
    count, pid, given = (environ.pop(f"LISTEN_{name}", "") for name in ("FDS", "PID", "FDNAMES"))
    if pid != str(os.getpid()) or not count.isdecimal():
        return ()  # none, or meant for another process
    if len(count) > LONGEST_NUMBER:
        raise CannotListen(f"systemd's LISTEN_FDS is {count[:LONGEST_NUMBER]}...: no process has so many sockets")
    numbers = range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count))
    called = [PUBLIC] if len(numbers) == 1 else given.split(":")
    if sorted(called) != sorted({*called} & {*names}) or len(called) != len(numbers):
        raise CannotListen(
            f"systemd passed sockets called {given or 'nothing'}: give each socket unit FileDescriptorName= one of "
            f"{', '.join(names)}, each once"
        )
    return [ListeningSocket(name, _listening(number)) for name, number in zip(called, numbers, strict=True)]


def _listening(number: int) -> socket.socket:
    try:
        os.set_inheritable(number, False)
        found = socket.socket(fileno=number)
        is_tcp = found.family in {socket.AF_INET, socket.AF_INET6} and found.type == socket.SOCK_STREAM
        if is_tcp and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return found
    except OSError as error:
        raise CannotListen(f"systemd's descriptor {number} is no socket: {error}") from error
    raise CannotListen(f"systemd's socket {number} takes no TCP connections: use ListenStream= with a port, Accept=no")


class Supervisor:
    """Whoever started the gateway and wants to hear how it does; without one (NOTIFY_SOCKET), nothing is sent."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._address = environ.pop("NOTIFY_SOCKET", "")
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        is_meant = usec.isdecimal() and len(usec) <= LONGEST_NUMBER and pid in {"", str(os.getpid())}
        self.watchdog_seconds = int(usec) / 1e6 if is_meant and self._address else 0.0

    def lives(self) -> None:
        """Say that the event loop turns, if the supervisor wants to know."""
        if self.watchdog_seconds:
            self.tell("WATCHDOG=1")

    def tell(self, *lines: str) -> None:
        """Send assignments such as READY=1; a supervisor that does not listen changes nothing."""
        if self._address.startswith(("/", "@")):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
                notifier.setblocking(False)
                address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
                notifier.sendto("\n".join(lines).encode(), address)
