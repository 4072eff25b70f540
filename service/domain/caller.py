"""The caller: the owner of a key, or an address. Each has its turn, and may have a quota."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from service.config.clients import MOST_SHARE, Scope
from service.domain.token_bucket import TokenBucket
from service.errors.overload import QuotaExceeded

ANYBODY = "anybody"  # the name of all callers without a key
PREDICT: frozenset[Scope] = frozenset({"predict"})


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """One caller, equal to itself alone."""

    name: str = ANYBODY  # in logs, metrics and events; never a key
    share: float = 1.0  # of a version's time, beside the shares of the others that wait; at least 1
    scopes: frozenset[Scope] = PREDICT
    quota: TokenBucket | None = None  # of images; None is no limit
    count_images: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.share <= MOST_SHARE:
            raise ValueError(f"a share is a number from 1 to {MOST_SHARE}, not {self.share:g}")

    def require_quota(self) -> None:
        """Raise QuotaExceeded unless one image more may come."""
        if self.quota is not None and (seconds := self.quota.missing_seconds(1, time.monotonic())):
            raise QuotaExceeded(math.ceil(seconds))

    def charge(self, num_images: int) -> None:
        """Take images from the quota; raises QuotaExceeded, and takes none, if they are too many."""
        if self.quota is not None and (seconds := self.quota.take(num_images, time.monotonic())):
            raise QuotaExceeded(math.ceil(seconds))


GATEWAY = Caller("gateway")  # asks for itself: copies for shadows
