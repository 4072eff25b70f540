"""Whoever sends wrong credentials again and again must wait, each time longer."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from service.admin.addresses import MOST_ADDRESSES, network_of
from service.domain.recent import Recent
from service.errors.admin import CredentialsBackoff

FREE_FAILURES = 5
LONGEST_WAIT_SECONDS = 60.0
FORGOTTEN_SECONDS = 600.0  # a failure that is older counts no more

_network_of = lru_cache(MOST_ADDRESSES)(network_of)


@dataclass(slots=True)
class Failures:
    """What an address has failed at of late."""

    number: int
    last: float
    blocked_until: float = 0.0


class Backoff:
    """Counts failures for each address. Its tables are bounded.

    Credentials that were right from an address before go on being right there: a stranger behind the same proxy, or a
    neighbour with an old key, holds up nobody who is at work. Right ones do not make the failures forgotten; else a
    key for predictions would buy any number of guesses at the token.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: Recent[str, Failures] = Recent(MOST_ADDRESSES)
        self._trusted: Recent[tuple[str, bytes], bool] = Recent(MOST_ADDRESSES)

    def require_patience(self, address: str, digest: bytes) -> None:
        """Raise CredentialsBackoff while an address has to wait; `digest` is that of what it has given."""
        if not self._failures:
            return
        failures = self._failures.get(_network_of(address))
        if failures is None or (seconds := failures.blocked_until - self._clock()) <= 0:
            return
        if not self._trusted.get((address, digest)):
            raise CredentialsBackoff(math.ceil(seconds))

    def fail(self, address: str) -> None:
        """Count wrong credentials. After FREE_FAILURES the address waits for a second, then twice as long each time."""
        now, network = self._clock(), _network_of(address)
        failures = self._failures.get(network)
        if failures is None or now - failures.last > FORGOTTEN_SECONDS:
            failures = Failures(0, now)
            self._failures.put(network, failures)
        failures.number, failures.last = failures.number + 1, now
        if (excess := failures.number - FREE_FAILURES) > 0:
            failures.blocked_until = now + min(2.0 ** min(excess - 1, 10), LONGEST_WAIT_SECONDS)

    def trust(self, address: str, digest: bytes) -> None:
        """Remember the digest of credentials that were right."""
        known = address, digest
        if known not in self._trusted.young:
            self._trusted.put(known, True)
