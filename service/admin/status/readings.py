"""Readings of the metrics as plain numbers, and their differences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from service.telemetry.version_metrics import VersionMetrics

Buckets = tuple[float, ...]  # observations in each bucket of a histogram; the last has no upper edge


def samples(collector: Collector) -> Iterator[Sample]:
    """Return the samples of a collector."""
    for family in collector.collect():
        yield from family.samples


def value(child: Collector) -> float:
    """Return the value of a counter's or gauge's child."""
    return next(sample.value for sample in samples(child) if not sample.name.endswith("_created"))


def edges_of(histogram: Collector) -> tuple[float, ...]:
    """Return the finite upper edges of a histogram's child."""
    return tuple(float(sample.labels["le"]) for sample in samples(histogram) if sample.name.endswith("_bucket"))[:-1]


def buckets(histogram: Collector) -> Buckets:
    """Return the observations in each bucket of a histogram's child."""
    cumulative = [sample.value for sample in samples(histogram) if sample.name.endswith("_bucket")]
    return tuple(upper - lower for lower, upper in pairwise([0.0, *cumulative]))


def since(now: Sequence[float], then: Sequence[float] | None) -> Buckets:
    """Return the increase between two readings of counters. After a reset, that is the whole value."""
    if then is None or any(after < before for after, before in zip(now, then, strict=True)):
        return tuple(now)
    return tuple(after - before for after, before in zip(now, then, strict=True))


def grown(now: Mapping[str, float], then: Mapping[str, float]) -> dict[str, float]:
    """Return the increase of named counters; a new one started at 0."""
    return {name: num - then.get(name, 0.0) for name, num in now.items()}


def together(several: Sequence[Buckets]) -> Buckets:
    """Return the sums, bucket by bucket."""
    return tuple(sum(each) for each in zip(*several, strict=True))


def quantile(upper_edges: Sequence[float], counts: Buckets, share: float) -> float | None:
    """Return the value below which `share` of the observations lie; None if there is none.

    It is interpolated inside its bucket; the first begins at 0. Beyond the last finite edge it is that edge: https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile
    """
    rank = share * sum(counts)
    if not rank:
        return None
    lower, below = 0.0, 0.0
    for upper, count in zip(upper_edges, counts, strict=False):
        if count and below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        lower, below = upper, below + count
    return lower


@dataclass(frozen=True, slots=True)
class VersionReading:
    """The counters of one version since it was loaded."""

    outcomes: Mapping[str, float]  # requests by outcome
    latency: Buckets  # of answered requests
    sizes: Buckets  # of batches
    items: float  # images answered
    batches: float

    @classmethod
    def of(cls, metrics: VersionMetrics) -> "VersionReading":
        """Read a version's metrics."""
        return cls(
            outcomes={
                outcome: sum(value(child) for child in children)
                for outcome, children in metrics.requests_in_all_roles().items()
            },
            latency=buckets(metrics.seconds["success"]),
            sizes=buckets(metrics.batch_size),
            items=value(metrics.items),
            batches=value(metrics.batches),
        )

    def since(self, then: "VersionReading | None") -> "VersionReading":
        """Return the increase since `then`; everything if the version was loaded after it."""
        if then is None:
            return self
        outcomes = since(tuple(self.outcomes.values()), tuple(then.outcomes.values()))
        items, batches = since((self.items, self.batches), (then.items, then.batches))
        return VersionReading(
            dict(zip(self.outcomes, outcomes, strict=True)),
            since(self.latency, then.latency),
            since(self.sizes, then.sizes),
            items,
            batches,
        )
