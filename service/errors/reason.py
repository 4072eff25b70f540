"""What callers are told of a failure: readers the whole, others what is wrong by kind.

The whole text may hold paths, hosts and the text of exceptions.
"""

from collections.abc import Iterable
from dataclasses import dataclass

DETAILS = "for details, send the admin token or a key with the scope read, or see the gateway's log"


@dataclass(frozen=True)
class Reason:
    """Why something does not answer, in two texts, each without a full stop; both are empty if there is no reason."""

    public: str
    whole: str

    def told(self, *, may_read: bool) -> str:
        """Return the text for a caller. A public one that leaves something out says where the rest is."""
        return self.whole if may_read or self.whole == self.public else f"{self.public}; {DETAILS}"


def open_reason(text: str) -> Reason:
    """Return a reason that anybody may read."""
    return Reason(text, text)


def joined(reasons: Iterable[Reason]) -> Reason:
    """Return several reasons as one."""
    each = list(reasons)
    return Reason("; ".join(reason.public for reason in each), "; ".join(reason.whole for reason in each))
