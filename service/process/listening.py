"""The sockets that the gateway listens on, each under a name."""

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.config.settings import Settings

BACKLOG = 2048
ADMIN = "admin"  # the socket of TORCHGATE_ADMIN_HOST and TORCHGATE_ADMIN_PORT
PUBLIC = "http"  # the socket of TORCHGATE_HOST and TORCHGATE_PORT


class CannotListen(Exception):
    """The gateway cannot listen; the message is for people and names the settings."""


@dataclass(frozen=True)
class ListeningSocket:
    """A socket that takes connections, and what it is for."""

    name: str
    socket: socket.socket

    @property
    def address(self) -> tuple[str, int]:
        """Return its host and port."""
        host, port = self.socket.getsockname()[:2]
        return host, port


@dataclass(frozen=True)
class Address:
    """Where to listen, and the settings that say so."""

    name: str
    host: str
    port: int
    variables: str


def addresses(settings: Settings) -> Sequence[Address]:
    """Return where the settings want the gateway to listen; the first is where clients predict."""
    public = Address(PUBLIC, settings.host, settings.port, "TORCHGATE_HOST, TORCHGATE_PORT")
    if settings.admin_port is None:
        return [public]
    variables = "TORCHGATE_ADMIN_HOST, TORCHGATE_ADMIN_PORT"
    return [public, Address(ADMIN, settings.admin_host, settings.admin_port, variables)]


def open_sockets(settings: Settings, given: Sequence[ListeningSocket] = ()) -> Sequence[ListeningSocket]:
    """Return a socket for each address: the `given` one of its name, else a new one. Raises CannotListen.

    Given sockets that are elsewhere or that no setting asks for are closed, and all if one cannot be opened.
    """
    wanted = addresses(settings)
    fitting = {each.name: each for each in given if any(_fits(each, address) for address in wanted)}
    found: list[ListeningSocket] = []
    try:
        # What does not fit is closed first: it may hold the port of one that does.
        _close(each for each in given if each.name not in fitting)
        found.extend(fitting.pop(address.name) if address.name in fitting else _bind(address) for address in wanted)
    except CannotListen:
        _close([*found, *fitting.values()])
        raise
    return found


def _close(sockets: Iterable[ListeningSocket]) -> None:
    for each in sockets:
        each.socket.close()


def _fits(given: ListeningSocket, address: Address) -> bool:
    """Return whether a socket is where the settings want it: access depends on what they say."""
    if given.name != address.name:
        return False
    try:
        places = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, ValueError):
        return False
    return given.address in [place[4][:2] for place in places]


def _bind(address: Address) -> ListeningSocket:
    host, port = address.host, address.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return ListeningSocket(address.name, socket.create_server((host, port), family=family, backlog=BACKLOG))
    except (OSError, TypeError, ValueError) as error:  # for some host names socket raises no OSError
        reason = getattr(error, "strerror", None) or error
        raise CannotListen(f"cannot listen on {host}:{port} ({address.variables}): {reason}") from error
