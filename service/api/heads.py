"""Heads of requests that came before: most clients send the same bytes again and again, but for the body's length.

Reading a head takes a good part of what a small request costs the gateway. What the parser made of one is kept, and the
same bytes mean the same the next time. Kept are only heads that the parser itself found to be followed by exactly the
body that their one Content-Length names, on connections that stay open.
"""

from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]

MOST_HEADS = 256
MOST_HEAD_BYTES = 2048
MOST_DIGITS = 9
# As clients write it; another spelling is parsed every time.
LENGTH_LINE = b"\r\nContent-Length: "
LENGTH = b"content-length"
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

    def with_length(self, digits: bytes) -> Headers:
        """Return the headers with another Content-Length."""
        return [(name, digits if name == LENGTH else value) for name, value in self.headers]


class KnownHeads:
    """Some heads by their bytes, without the number in Content-Length."""

    def __init__(self) -> None:
        self._heads: dict[tuple[bytes, bytes], Head] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._heads)

    def find(self, data: bytes) -> tuple[Head, Headers, bytes] | None:
        """Return head, headers and body if `data` is one request and no more, and its head is known."""
        before, digits, rest, begin = _split(data)
        head = self._heads.get((before, rest))
        if head is None or not digits.isdigit() or int(digits) != len(data) - begin:
            return None
        return head, head.with_length(digits), data[begin:]

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
            self._heads[before, rest] = head


def _split(data: bytes) -> tuple[bytes, bytes, bytes, int]:
    """Return a head before its length, the length's digits, the head after it, and where the body begins.

    What is no such head, or a longer one, has no digits.
    """
    end = data.find(b"\r\n\r\n", 0, MOST_HEAD_BYTES)
    before, _, after = data[: max(end, 0)].partition(LENGTH_LINE)
    digits, _, rest = after.partition(b"\r\n")
    return before, digits if len(digits) <= MOST_DIGITS else b"", rest, end + 4
