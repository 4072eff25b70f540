"""Numbers read from the metrics: counters, buckets, and what follows from two readings of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from service.telemetry.version_metrics import VersionMetrics

QUANTILES = (0.5, 0.95, 0.99)

Counts = tuple[float, ...]  # of a histogram: the observations in each bucket; the last has no upper edge


def samples(collector: Collector) -> Iterator[Sample]:
    """Return the samples of a collector."""
    for family in collector.collect():
        yield from family.samples


def value(child: Collector) -> float:
    """Return the value of a counter's or gauge's child."""
    return next(samples(child)).value


def edges_of(histogram: Collector) -> tuple[float, ...]:
    """Return the finite upper edges of a histogram's child."""
    return tuple(float(sample.labels["le"]) for sample in samples(histogram) if sample.name.endswith("_bucket"))[:-1]


def buckets(histogram: Collector) -> Counts:
    """Return the observations in each bucket of a histogram's child."""
    cumulative = [sample.value for sample in samples(histogram) if sample.name.endswith("_bucket")]
    return tuple(upper - lower for lower, upper in pairwise([0.0, *cumulative]))


def since(now: Counts, then: Counts) -> Counts:
    """Return the increase between two readings of counters. After a reset, that is the whole value."""
    increase = tuple(after - before for after, before in zip(now, then, strict=True))
    return now if any(each < 0 for each in increase) else increase


def per_second(now: Mapping[str, float], seconds: float, then: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the increase of named counters per second, without those that are 0; a new one started at 0."""
    before = then or {}
    return {name: num / seconds for name, each in now.items() if seconds and (num := each - before.get(name, 0.0))}


def quantile(upper_edges: Sequence[float], counts: Counts, share: float) -> float | None:
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


def quantiles_ms(upper_edges: Sequence[float], counts: Counts) -> list[float] | None:
    """Return p50, p95 and p99 in milliseconds; None without observations."""
    found = [quantile(upper_edges, counts, share) for share in QUANTILES]
    return [seconds * 1000 for seconds in found if seconds is not None] or None


class VersionReading(NamedTuple):
    """The counters of one version since it was loaded."""

    outcomes: Counts = ()  # requests, in the order of VersionMetrics.requests
    latency: Counts = ()  # answered requests, by bucket
    sizes: Counts = ()  # batches, by bucket
    totals: Counts = (0, 0)  # images answered, batches

    @classmethod
    def of(cls, metrics: VersionMetrics) -> "VersionReading":
        """Read a version's metrics."""
        return cls(
            tuple(sum(value(child) for child in each) for each in metrics.requests_in_all_roles().values()),
            buckets(metrics.seconds["success"]),
            buckets(metrics.batch_size),
            (value(metrics.items), value(metrics.batches)),
        )

    def since(self, then: "VersionReading | None") -> "VersionReading":
        """Return the increase since `then`; everything if the version was loaded after it."""
        return self if then is None else VersionReading(*map(since, self, then))

    @property
    def mean_batch(self) -> float | None:
        """Return the images of a batch on average; None without batches."""
        items, batches = self.totals
        return items / batches if batches else None


def together(readings: Iterable[VersionReading]) -> VersionReading:
    """Return the sums over several versions."""
    return VersionReading(*(tuple(map(sum, zip(*each, strict=True))) for each in zip(*readings, strict=True)))
