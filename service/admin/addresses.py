"""The callers without a key: one for each address."""

import ipaddress
from collections.abc import Callable

from service.domain.caller import Caller
from service.domain.recent import Recent

MOST_ADDRESSES = 4096
NETWORK_BITS = 64  # of an IPv6 address: whoever has one usually has all of its network


class Addresses:
    """Finds the caller of an address; an address that has not called of late is a new caller."""

    def __init__(self, make: Callable[[], Caller]) -> None:
        self._make = make
        self.known: Recent[str, Caller] = Recent(MOST_ADDRESSES)
        self._by_network: Recent[str, Caller] = Recent(MOST_ADDRESSES)  # of IPv6 alone

    def caller(self, address: str) -> Caller:
        """Return the caller of an address; all addresses of an IPv6 network of 64 bits have one."""
        return self.known.get(address) or self._new(address)

    def _new(self, address: str) -> Caller:
        network = network_of(address)
        caller = self._by_network.get(network) if network != address else None
        if caller is None:
            caller = self._make()
            if network != address:
                self._by_network.put(network, caller)
        self.known.put(address, caller)
        return caller


def network_of(address: str) -> str:
    """Return the network of an IPv6 address; any other text as it is."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # a Unix socket
        return address
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((found, NETWORK_BITS), strict=False))
