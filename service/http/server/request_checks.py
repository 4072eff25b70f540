"""Which requests come in at a listener: for whose name, and for which paths."""

import ipaddress
import re

from service.config.settings import Settings
from service.errors.request import AdminListenerOnly, HostNotAllowed
from service.process.listening import ADMIN

# What the public listener answers if there is another one for the rest.
PUBLIC_PATHS = frozenset({"/predict", "/feedback", "/healthz", "/readyz", "/errors"})
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{0,5})?")  # RFC 9110, section 7.2
MOST_KNOWN = 256
LONGEST_HOST = 100  # of which an error tells
LONGEST_PATH = 200  # of which an error tells


class RequestChecks:
    """Checks a request's path, and its `Host`: a web page elsewhere can have a name of its own lead here."""

    def __init__(self, settings: Settings, listener: str) -> None:
        is_admin = listener == ADMIN
        self._names = settings.host_names
        host = settings.admin_host if is_admin else settings.host
        self._is_local = settings.allowed_hosts is None and is_loopback(host)
        self._answers_all = is_admin or settings.admin_port is None
        # Spellings that were let in, for the caller to look into first. HTTP/1.0 has no Host; a browser always has one.
        self.known_hosts: set[bytes | None] = {None}

    def require_host(self, host: bytes | None) -> None:
        """Raise HostNotAllowed unless a request may be for `host`, a name or address with or without a port."""
        if host in self.known_hosts:
            return
        text = (host or b"").decode("latin-1")
        if not self._is_allowed(text):
            raise HostNotAllowed(text[:LONGEST_HOST])
        if len(self.known_hosts) >= MOST_KNOWN:
            self.known_hosts.clear()
            self.known_hosts.add(None)
        self.known_hosts.add(host)

    def require_path(self, path: str) -> None:
        """Raise AdminListenerOnly if the path is answered at the other listener alone."""
        if not self._answers_all and path not in PUBLIC_PATHS:
            raise AdminListenerOnly(path[:LONGEST_PATH])

    def _is_allowed(self, text: str) -> bool:
        if self._names is None and not self._is_local:
            return True
        found = HOST.fullmatch(text)
        if found is None:
            return False
        name = (found[1] or found[2]).lower()
        return name in self._names if self._names is not None else is_loopback(name)


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is this machine's own."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
