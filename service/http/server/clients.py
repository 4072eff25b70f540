"""Who is at the other end of a connection, and for whom a trusted proxy asks."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from service.config.settings import Settings
from service.http.server.request_checks import RequestChecks
from service.process.listening import ADMIN, PUBLIC

LONGEST_FORWARDED = 2048  # bytes of X-Forwarded-For that are looked at, from its end
Scheme = Literal["http", "https"]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# RFC 4514, sections 2.4 and 3
SPECIAL = re.compile(r'([,+"\\<>;=])')
BACKSLASH = r"\\\1"
SHORT_NAMES = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "domainComponent": "DC",
    "userId": "UID",
}
SCHEMES: dict[bytes, Scheme] = {b"http": "http", b"https": "https"}


class Wire(Protocol):
    """A connection's transport, or what stands for it before there is one."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a fact about it; see asyncio.BaseTransport."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait in memory."""

    def close(self) -> None:
        """End it after all that was written."""

    def abort(self) -> None:
        """End it now."""


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a connection; made once for each connection."""

    address: str  # without the port; empty if it has none
    scheme: Scheme
    checks: RequestChecks  # of its listener
    certificate: str | None = None  # the subject of the certificate that it has shown
    is_proxy: bool = False  # a trusted one, so each of its requests has a client of its own


class Clients:
    """Tells who a connection's client is, and who a proxy's is."""

    def __init__(self, settings: Settings) -> None:
        self._proxies = settings.proxy_networks
        self._checks = {name: RequestChecks(settings, name) for name in (PUBLIC, ADMIN)}

    def greet(self, transport: Wire, listener: str) -> Client:
        """Return the client of a new connection."""
        peer = transport.get_extra_info("peername")
        address = _address(peer[0]) if isinstance(peer, tuple) else None  # a Unix socket has none
        is_tls = transport.get_extra_info("sslcontext") is not None
        return Client(
            "" if address is None else str(address),
            "https" if is_tls else "http",
            self._checks[listener],
            _subject(transport.get_extra_info("peercert")) if is_tls else None,
            is_proxy=self._is_proxy(address),
        )

    def forwarded(self, proxy: Client, headers: Iterable[tuple[bytes, bytes]]) -> Client:
        """Return the client that a trusted proxy asks for: the nearest address that no trusted proxy has.

        Addresses further away may be forged: whoever asks the outermost proxy can have written them. A header that
        holds no address at that place leaves the proxy's own.
        """
        chain, scheme = [], proxy.scheme
        for name, value in headers:
            if name == b"x-forwarded-for":
                chain.append(value)
            elif name == b"x-forwarded-proto":
                scheme = SCHEMES.get(value.rpartition(b",")[2].strip().lower(), scheme)
        nearest = None
        for hop in reversed(b",".join(chain)[-LONGEST_FORWARDED:].split(b",")):
            address = _address(hop.strip().decode("latin-1"))
            nearest = address or nearest
            if not self._is_proxy(address):
                break
        found = proxy.address if nearest is None else str(nearest)
        # The certificate is the proxy's own: it does not speak for those behind.
        return replace(proxy, address=found, scheme=scheme, certificate=None, is_proxy=False)

    def _is_proxy(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._proxies)


def _subject(certificate: dict[str, Any] | None) -> str | None:
    """Return the subject of a certificate as text, such as `CN=alice,O=operators`; None without a certificate.

    Where the subject is empty, its alternative names are who it is (RFC 5280, section 4.1.2.6), else its number.
    """
    if not certificate:
        return None
    pairs = [pair for names in certificate.get("subject", ()) for pair in names]
    pairs = pairs or [pair for pair in certificate.get("subjectAltName", ()) if isinstance(pair[1], str)]
    pairs = pairs or [("serial", certificate.get("serialNumber", "unknown"))]
    return ",".join(f"{SHORT_NAMES.get(name, name)}={SPECIAL.sub(BACKSLASH, value)}" for name, value in pairs)


def _address(text: str) -> Address | None:
    """Return an address: without a port, brackets, a zone or IPv4 inside IPv6."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
