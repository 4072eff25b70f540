"""Whether a manifest may be believed: signed by a trusted key, not older than one seen before, not expired."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from service.domain.archive import StoreError, TrustError
from service.errors.admin import StateUnavailable
from service.persistence.archives.counters import NOTHING, Accepted, Counters
from service.persistence.archives.signatures import RENEW, Keys, Signed, read_keys, verified


class Trust(Protocol):
    """What a manifest must be."""

    def check(self, store: Path, manifest: bytes) -> None:
        """Raise StoreError unless the manifest of `store`, with these bytes, may be believed. Blocks."""

    def check_absence(self, store: Path) -> None:
        """Raise StoreError if `store` must have a manifest, and has none. Blocks."""


class AnyManifest:
    """No signature is asked for."""

    def check(self, store: Path, manifest: bytes) -> None:
        """Believe it."""

    def check_absence(self, store: Path) -> None:
        """Believe that it is still empty."""


class SignedManifest:
    """Signed by a key in `folder`, which is read anew each time: adding and removing keys needs no restart."""

    def __init__(
        self,
        folder: Path,
        counters: Counters,
        tell_expiry: Callable[[float], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._counters = counters
        self._tell_expiry = tell_expiry
        self._clock = clock

    def check(self, store: Path, manifest: bytes) -> None:
        """Check signature, counter and expiry, in this order: an expired manifest still outdates those before it."""
        keys = read_keys(self._folder)
        signed = verified(store, manifest, keys, self._folder)
        self._check_counter(signed, keys)
        self._tell_expiry(signed.expires.timestamp())
        if self._clock() >= signed.expires.timestamp():
            raise TrustError("expired", f"the manifest's signature ended at {signed.expires.isoformat()}: {RENEW}")

    def check_absence(self, store: Path) -> None:
        """Raise TrustError if a manifest was accepted before: without one, everything would be revoked in silence."""
        if self._highest(read_keys(self._folder)) != NOTHING:
            text = f"{store} has no manifest any more, and one was accepted before"
            raise TrustError("unsigned", f"{text}. Put the newest manifest and its signature back")

    def _check_counter(self, signed: Signed, keys: Keys) -> None:
        highest = self._highest(keys)
        if signed.counter < highest.counter:
            text = f"the manifest has the counter {signed.counter}, and {highest.counter} was accepted before"
            raise TrustError("replayed", f"{text}. Put the newest manifest and its signature back, or {RENEW}")
        if signed.counter == highest.counter and signed.sha256 != highest.sha256:
            text = f"another manifest was accepted with the same counter, {signed.counter}"
            raise TrustError("replayed", f"{text}: {RENEW}")
        if signed.counter > highest.counter:
            self._counters.accept(signed.key_id, Accepted(signed.counter, signed.sha256))

    def _highest(self, keys: Keys) -> Accepted:
        try:
            return self._counters.highest(keys)
        except StateUnavailable as error:
            raise StoreError(f"whether the manifest is the newest one is not known: {error}") from error
