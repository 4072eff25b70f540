"""Ids of answers that prove what was answered, so that feedback needs nothing kept for each prediction."""

import base64
import binascii
import hmac
import random
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from service.backend import Target

HEAD = struct.Struct(">IHI")  # time of the answer in seconds since 1970, then 48 bits that tell answers apart
SIGNATURE_BYTES = 12
NO_CLASS = 0xFFFF  # of an image that has no prediction
LONGEST_ID = 4096


class ReceiptInvalid(ValueError):
    """The id was not made with this key."""


@dataclass(frozen=True)
class Receipt:
    """What an id says of its answer."""

    target: Target
    issued_at: int  # seconds since 1970
    classes: Sequence[int | None]  # of each image the index of its class, None where it has none


class Receipts:
    """Issues ids and reads them back; the key is set once the database has told it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._key = b""
        # Seeded by the system once; asking it for every id is a system call each.
        self._random = random.Random()  # noqa: S311 - it is the signature that cannot be guessed

    def use(self, key: bytes) -> None:
        """Sign with `key` from now on."""
        self._key = key

    def issue(self, target: Target, classes: Sequence[int | None]) -> str:
        """Return the id of an answer."""
        indices = [NO_CLASS if index is None or index > NO_CLASS else index for index in classes]
        bits = self._random.getrandbits(48)
        payload = b"%b%b\0%b\0%b" % (
            HEAD.pack(int(self._clock()), bits >> 32, bits & 0xFFFFFFFF),
            target.model.encode(),
            target.version.encode(),
            struct.pack(f">{len(indices)}H", *indices),
        )
        return _written(payload + self._signature(payload))

    def read(self, text: str) -> Receipt:
        """Return what an id says.

        Raises:
            ReceiptInvalid: it is none of ours.
        """
        try:
            signed = base64.urlsafe_b64decode(text[:LONGEST_ID].encode("ascii") + b"=" * (-len(text) % 4))
        except (binascii.Error, ValueError) as error:
            raise ReceiptInvalid from error
        payload, signature = signed[:-SIGNATURE_BYTES], signed[-SIGNATURE_BYTES:]
        # Decoding passes over much that does not belong there: one answer would have many ids.
        if text != _written(signed) or not hmac.compare_digest(signature, self._signature(payload)):
            raise ReceiptInvalid
        model, version, packed = payload[HEAD.size :].split(b"\0", 2)
        indices = struct.unpack(f">{len(packed) // 2}H", packed)
        classes = [None if index == NO_CLASS else index for index in indices]
        return Receipt(Target(model.decode(), version.decode()), HEAD.unpack_from(payload)[0], classes)

    def _signature(self, payload: bytes) -> bytes:
        return blake2b(payload, digest_size=SIGNATURE_BYTES, key=self._key).digest()


def _written(signed: bytes) -> str:
    return base64.urlsafe_b64encode(signed).rstrip(b"=").decode()
