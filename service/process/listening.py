"""The sockets that the gateway listens on, each under a name."""

import socket
from collections.abc import Sequence
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


def bind_sockets(settings: Settings) -> Sequence[ListeningSocket]:
    """Return new sockets on the addresses of the settings; raises CannotListen."""
    public = _bind(PUBLIC, settings.host, settings.port, "TORCHGATE_HOST, TORCHGATE_PORT")
    if settings.admin_port is None:
        return [public]
    try:
        variables = "TORCHGATE_ADMIN_HOST, TORCHGATE_ADMIN_PORT"
        return [public, _bind(ADMIN, settings.admin_host, settings.admin_port, variables)]
    except CannotListen:
        public.socket.close()
        raise


def _bind(name: str, host: str, port: int, variables: str) -> ListeningSocket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return ListeningSocket(name, socket.create_server((host, port), family=family, backlog=BACKLOG))
    except (OSError, TypeError, ValueError) as error:  # for some host names socket raises no OSError
        reason = getattr(error, "strerror", None) or error
        raise CannotListen(f"cannot listen on {host}:{port} ({variables}): {reason}") from error
