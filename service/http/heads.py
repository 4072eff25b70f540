"""Heads of requests that came before: most clients send the same bytes again and again, but for the body's length.

Reading a head takes a good part of what a small request costs the gateway. What the parser made of one is kept, and the
same bytes mean the same the next time. Kept are only heads that the parser itself found to be followed by exactly the
body that their one Content-Length names, on connections that stay open.
"""

import re
from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]
Fields = dict[bytes, bytes]  # of several headers with one name the last

MOST_HEADS = 256
MOST_HEAD_BYTES = 2048
MOST_DIGITS = 9
# As clients write it; another spelling is parsed every time.
LENGTH_LINE = b"\r\nContent-Length: "
LENGTH = b"content-length"
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
# What differs in every request: such a head does not come again.
UNIQUE = frozenset({b"x-request-id", b"traceparent"})


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """What the parser found in a head."""

    method: str
    path: str
    query_string: bytes
    headers: Headers
    keep_alive: bool


class KnownHeads:
    """Some heads by their bytes, without the number in Content-Length."""

    def __init__(self) -> None:
        self._heads: dict[tuple[bytes, bytes], tuple[Head, Fields]] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._heads)

    def find(self, data: bytes) -> tuple[Head, Fields, bytes] | None:
        """Return head, fields and body if `data` is one request and no more, and its head is known.

        The head's own headers have the length of the request that it was learnt from.
        """
        before, digits, rest, begin = _split(data)
        found = self._heads.get((before, rest))
        if found is None or not digits.isdigit() or int(digits) != len(data) - begin:
            return None
        head, fields = found
        return head, {**fields, LENGTH: digits}, data[begin:]

    def remember(self, data: bytes, head: Head, num_body_bytes: int) -> None:
        """Keep the head that `data` begins with, as the parser read it, if it is as it must be."""
        before, digits, rest, begin = _split(data)
        names = [name for name, _ in head.headers]
        if (
            head.keep_alive
            and num_body_bytes == len(data) - begin
            and names.count(LENGTH) == 1
            and (LENGTH, digits) in head.headers
            and b"transfer-encoding" not in names
            and UNIQUE.isdisjoint(names)
            and b"boundary=" not in data[:begin]  # a form's, new in every request
        ):
            if len(self._heads) >= MOST_HEADS:
                del self._heads[next(iter(self._heads))]  # the oldest
            self._heads[before, rest] = head, dict(head.headers)


def _split(data: bytes) -> tuple[bytes, bytes, bytes, int]:
    """Return a head before its length, the length's digits, the head after it, and where the body begins.

    What is no such head, or a longer one, has no digits.
    """
    end = data.find(b"\r\n\r\n", 0, MOST_HEAD_BYTES)
    before, _, after = data[: max(end, 0)].partition(LENGTH_LINE)
    digits, _, rest = after.partition(b"\r\n")
    return before, digits if len(digits) <= MOST_DIGITS else b"", rest, end + 4


def without_upgrade(data: bytes) -> bytes:
    """Return the bytes with the first head's Upgrade header under another name.

    Nothing else than HTTP/1.1 is spoken here, and a server may ignore the header (RFC 9110, section 7.8); but the
    parser would take the body that follows it for something else. Some clients send it with every first request.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0 or b"upgrade:" not in data[:end].lower():
        return data
    return UPGRADE.sub(b"\r\nX-Upgrade:", data[:end]) + data[end:]
