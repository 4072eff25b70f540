"""Ids of answers that prove what was answered, so that feedback needs nothing kept for each prediction.

An id is hexadecimal: 4 bytes of time, 6 that tell answers apart, the version's name, two bytes for each image's class,
and a signature (keyed BLAKE2b, RFC 7693).
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
SIGNATURE_BYTES = 12
NO_CLASS = 0xFFFF  # of an image that has no prediction
LONGEST_ID = 4096
ONE_CLASS = struct.Struct(">H")  # of the usual answer: packed in a quarter of the time


class PredictionIdInvalid(ValueError):
    """The id was not made with this key."""


@dataclass(frozen=True)
class PredictionId:
    """What an id says of its answer."""

    target: Target
    issued_at: int  # seconds since 1970
    classes: Sequence[int | None]  # of each image the index of its class, None where it has none


def target_bytes(target: Target) -> bytes:
    """Return a version's name as ids have it; made once, since every answer needs it."""
    return b"%b\0%b\0" % (target.model.encode(), target.version.encode())


class PredictionIds:
    """Issues ids and reads them back; the key is set once the database has told it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._signer = blake2b(digest_size=SIGNATURE_BYTES)
        # Seeded by the system once; asking it for every id is a system call each.
        self._random = random.Random()  # noqa: S311 - it is the signature that cannot be guessed

    def use(self, key: bytes) -> None:
        """Sign with `key` from now on."""
        self._signer = blake2b(digest_size=SIGNATURE_BYTES, key=key)

    def issue(self, name: bytes, classes: Sequence[int]) -> str:
        """Return the id of an answer; `name` is its version's, and NO_CLASS stands for an image without a class."""
        payload = (
            int(self._clock()).to_bytes(TIME_BYTES)
            + self._random.getrandbits(8 * RANDOM_BYTES).to_bytes(RANDOM_BYTES)
            + name
            + (ONE_CLASS.pack(*classes) if len(classes) == 1 else struct.pack(f">{len(classes)}H", *classes))
        )
        return (payload + self._signature(payload)).hex()

    def read(self, text: str) -> PredictionId:
        """Return what an id says.

        Raises:
            PredictionIdInvalid: it is none of ours.
        """
        try:
            signed = bytes.fromhex(text[:LONGEST_ID])
        except ValueError as error:
            raise PredictionIdInvalid from error
        payload, signature = signed[:-SIGNATURE_BYTES], signed[-SIGNATURE_BYTES:]
        # Reading passes over spaces and capitals: one answer would have many ids.
        if text != signed.hex() or not hmac.compare_digest(signature, self._signature(payload)):
            raise PredictionIdInvalid
        model, version, packed = payload[TIME_BYTES + RANDOM_BYTES :].split(b"\0", 2)
        indices = struct.unpack(f">{len(packed) // 2}H", packed)
        classes = [None if index == NO_CLASS else index for index in indices]
        return PredictionId(Target(model.decode(), version.decode()), int.from_bytes(payload[:TIME_BYTES]), classes)

    def _signature(self, payload: bytes) -> bytes:
        signer = self._signer.copy()  # cheaper than to begin with the key each time
        signer.update(payload)
        return signer.digest()
