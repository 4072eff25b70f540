"""Which requests come in: from whom, and for whose name."""

import ipaddress
from urllib.parse import urlsplit

from service.config.settings import Settings
from service.errors.request import HostNotAllowed
from service.http.server.clients import Clients

MOST_KNOWN = 256


class RequestChecks:
    """Checks a request's `Host`, since a web page elsewhere can have a name of its own lead here; knows the clients."""

    def __init__(self, settings: Settings) -> None:
        self.clients = Clients(settings.proxy_networks)
        self._names = settings.host_names
        self._is_local = settings.allowed_hosts is None and is_loopback(settings.host)
        # Spellings that were let in, for the caller to look into first. HTTP/1.0 has no Host; a browser always has one.
        self.known_hosts: set[bytes | None] = {None}

    def require_host(self, host: bytes | None) -> None:
        """Raise HostNotAllowed unless a request may be for `host`, a name or address with or without a port."""
        if host in self.known_hosts:
            return
        text = (host or b"").decode("latin-1")
        if not self._is_allowed(text):
            raise HostNotAllowed(text)
        if len(self.known_hosts) >= MOST_KNOWN:
            self.known_hosts.clear()
            self.known_hosts.add(None)
        self.known_hosts.add(host)

    def _is_allowed(self, text: str) -> bool:
        if self._names is None and not self._is_local:
            return True
        try:
            name = urlsplit(f"//{text}").hostname or ""
        except ValueError:
            return False
        return name in self._names if self._names is not None else is_loopback(name)


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is this machine's own."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
