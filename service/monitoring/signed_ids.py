"""Signed prediction ids: an id proves its answer, so that feedback needs no stored predictions.

An id is hexadecimal: 4 bytes of time, 6 random ones, one that says who chose the version, the version's name, two
bytes for each image's class, and a signature (keyed BLAKE2b, RFC 7693).
"""

import hmac
import random
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from service.domain.backend import Target

TIME_BYTES = 4
RANDOM_BYTES = 6
NAMED, DEALT = b"\0", b"\1"  # the version was named by the caller, or dealt by the traffic policy
HEAD_BYTES = TIME_BYTES + RANDOM_BYTES + len(DEALT)
SIGNATURE_BYTES = 12
NO_CLASS = 0xFFFF  # of an image without a prediction
LONGEST_ID = 4096
ONE_CLASS = struct.Struct(">H")  # packs the usual answer in a quarter of the time


class PredictionIdInvalid(ValueError):
    """The id was not signed with this key."""


@dataclass(frozen=True)
class PredictionId:
    """The content of an id."""

    target: Target
    issued_at: int  # seconds since 1970
    is_dealt: bool  # the traffic policy chose the version, not the caller
    classes: Sequence[int | None]  # one index for each image; None without a prediction


def target_bytes(target: Target) -> bytes:
    """Return a version's name as it is in ids. Make it once: every answer needs it."""
    return b"%b\0%b\0" % (target.model.encode(), target.version.encode())


class PredictionIds:
    """Issues and reads ids. The key is set once the database is open."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._signer = blake2b(digest_size=SIGNATURE_BYTES)
        # Seeded once: the system's own generator is a system call for each id.
        self._random = random.Random()  # noqa: S311 - the signature protects the id

    def use(self, key: bytes) -> None:
        """Sign with `key` from now on."""
        self._signer = blake2b(digest_size=SIGNATURE_BYTES, key=key)

    def issue(self, name: bytes, classes: Sequence[int], *, is_dealt: bool) -> str:
        """Return the id of an answer of the version `name`; NO_CLASS stands for an image without a class."""
        payload = (
            int(self._clock()).to_bytes(TIME_BYTES)
            + self._random.getrandbits(8 * RANDOM_BYTES).to_bytes(RANDOM_BYTES)
            + (DEALT if is_dealt else NAMED)
            + name
            + (ONE_CLASS.pack(*classes) if len(classes) == 1 else struct.pack(f">{len(classes)}H", *classes))
        )
        return (payload + self._signature(payload)).hex()

    def read(self, text: str) -> PredictionId:
        """Return the content of an id; PredictionIdInvalid if it was not signed with this key."""
        try:
            signed = bytes.fromhex(text[:LONGEST_ID])
        except ValueError as error:
            raise PredictionIdInvalid from error
        payload, signature = signed[:-SIGNATURE_BYTES], signed[-SIGNATURE_BYTES:]
        # fromhex() accepts spaces and capitals. They would give one answer many ids.
        if text != signed.hex() or not hmac.compare_digest(signature, self._signature(payload)):
            raise PredictionIdInvalid
        mark = payload[HEAD_BYTES - 1 : HEAD_BYTES]
        # Older releases put the version's name where the mark is: no name begins with one.
        names = payload[HEAD_BYTES if mark in {NAMED, DEALT} else HEAD_BYTES - 1 :]
        model, version, packed = names.split(b"\0", 2)
        indices = struct.unpack(f">{len(packed) // 2}H", packed)
        classes = [None if index == NO_CLASS else index for index in indices]
        target, issued_at = Target(model.decode(), version.decode()), int.from_bytes(payload[:TIME_BYTES])
        return PredictionId(target, issued_at, mark == DEALT, classes)

    def _signature(self, payload: bytes) -> bytes:
        signer = self._signer.copy()  # cheaper than to hash the key each time
        signer.update(payload)
        return signer.digest()
