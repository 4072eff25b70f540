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

from service.config.settings import MOST_IMAGES
from service.domain.backend import MOST_CLASSES, Target
from service.domain.names import MOST_CHARACTERS
from service.persistence.signing_keys import SigningKeys

TIME_BYTES = 4
RANDOM_BYTES = 6
NAMED, DEALT = b"\0", b"\1"  # the version was named by the caller, or dealt by the traffic policy
HEAD_BYTES = TIME_BYTES + RANDOM_BYTES + len(DEALT)
SIGNATURE_BYTES = 12
NO_CLASS = MOST_CLASSES  # of an image without a prediction
LONGEST_ID = 2 * (HEAD_BYTES + 2 * (MOST_CHARACTERS + 1) + 2 * MOST_IMAGES + SIGNATURE_BYTES)
# A gateway that cannot reach the database signs with the replaced key until it can.
OVERLAP_SECONDS = 3600
ONE_CLASS = struct.Struct(">H")  # packs the usual answer in a quarter of the time


class PredictionIdInvalid(ValueError):
    """The id was not signed with a key of this database."""


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
    """Issues and reads ids. The keys come once the database is open, and whenever they are replaced."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._keys: SigningKeys | None = None
        self._signer = _signer(b"")
        self._previous: tuple[blake2b, int] | None = None  # with the time up to which it may have signed
        # Seeded once: the system's own generator is a system call for each id.
        self._random = random.Random()  # noqa: S311 - the signature protects the id

    def use(self, keys: SigningKeys) -> None:
        """Sign with the present key from now on; accept what the previous one signed while it was the present one."""
        if keys != self._keys:
            until = keys.replaced_at + OVERLAP_SECONDS
            self._previous = None if keys.previous is None else (_signer(keys.previous), until)
            self._signer, self._keys = _signer(keys.present), keys

    def issue(self, name: bytes, classes: Sequence[int], *, is_dealt: bool) -> str:
        """Return the id of an answer of the version `name`; NO_CLASS stands for an image without a class."""
        payload = (
            int(self._clock()).to_bytes(TIME_BYTES)
            + self._random.getrandbits(8 * RANDOM_BYTES).to_bytes(RANDOM_BYTES)
            + (DEALT if is_dealt else NAMED)
            + name
            + (ONE_CLASS.pack(*classes) if len(classes) == 1 else struct.pack(f">{len(classes)}H", *classes))
        )
        return (payload + _signature(self._signer, payload)).hex()

    def read(self, text: str) -> PredictionId:
        """Return the content of an id; PredictionIdInvalid if it was not signed with these keys."""
        try:
            signed = bytes.fromhex(text[:LONGEST_ID])
        except ValueError as error:
            raise PredictionIdInvalid from error
        payload, signature = signed[:-SIGNATURE_BYTES], signed[-SIGNATURE_BYTES:]
        # fromhex() accepts spaces and capitals. They would give one answer many ids.
        if text != signed.hex() or not self._is_signed(payload, signature):
            raise PredictionIdInvalid
        mark = payload[HEAD_BYTES - 1 : HEAD_BYTES]
        # Older releases put the version's name where the mark is: no name begins with one.
        names = payload[HEAD_BYTES if mark in {NAMED, DEALT} else HEAD_BYTES - 1 :]
        model, version, packed = names.split(b"\0", 2)
        indices = struct.unpack(f">{len(packed) // 2}H", packed)
        classes = [None if index == NO_CLASS else index for index in indices]
        target, issued_at = Target(model.decode(), version.decode()), int.from_bytes(payload[:TIME_BYTES])
        return PredictionId(target, issued_at, mark == DEALT, classes)

    def _is_signed(self, payload: bytes, signature: bytes) -> bool:
        if hmac.compare_digest(signature, _signature(self._signer, payload)):
            return True
        if self._previous is None:
            return False
        signer, until = self._previous
        is_in_time = int.from_bytes(payload[:TIME_BYTES]) <= until
        return is_in_time and hmac.compare_digest(signature, _signature(signer, payload))


def _signer(key: bytes) -> blake2b:
    return blake2b(digest_size=SIGNATURE_BYTES, key=key)


def _signature(signer: blake2b, payload: bytes) -> bytes:
    signer = signer.copy()  # cheaper than to hash the key each time
    signer.update(payload)
    return signer.digest()
