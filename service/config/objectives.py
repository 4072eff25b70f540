"""What the service promises: the share of requests that must be answered, and of answers that must be fast."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Objectives:
    """The service level objectives; alerts compare what is measured with them."""

    latency_seconds: float  # an answer is fast up to this, included
    latency_ratio: float  # of the answers that must be fast
    availability_ratio: float  # of the requests that must be answered, those that the client spoilt left out

    def edges(self, buckets: Iterable[float]) -> tuple[float, ...]:
        """Return the buckets of a histogram of durations with an edge on the threshold."""
        return tuple(sorted({*buckets, self.latency_seconds}))
