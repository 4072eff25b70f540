"""Counters become rates, buckets become quantiles."""

import pytest
from prometheus_client import CollectorRegistry, Histogram

from service.admin.status.collector import as_json
from service.admin.status.readings import (
    VersionReading,
    buckets,
    edges_of,
    per_second,
    quantile,
    quantiles_ms,
    since,
    together,
    value,
)
from service.domain.backend import Target
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import VersionMetrics

EDGES = (0.1, 0.2, 0.4)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ((0, 0, 0, 0), 0.5, None),
        ((4, 0, 0, 0), 0.5, 0.05),  # in the first bucket from 0
        ((2, 2, 0, 0), 0.5, 0.1),  # on an edge
        ((2, 2, 4, 0), 0.75, 0.3),
        ((0, 0, 10, 0), 0.99, 0.398),
        ((1, 0, 0, 9), 0.99, 0.4),  # beyond the last edge nothing is known
    ],
)
def test_quantiles_are_interpolated_as_prometheus_does(
    counts: tuple[float, ...], share: float, expected: float | None
) -> None:
    assert quantile(EDGES, counts, share) == (None if expected is None else pytest.approx(expected))


def test_buckets_are_read_apart() -> None:
    histogram = Histogram("seconds", "Of a test.", ("kind",), buckets=EDGES, registry=CollectorRegistry())
    child = histogram.labels("one")
    for seconds in (0.05, 0.15, 0.15, 3):
        child.observe(seconds)
    histogram.labels("other").observe(0.05)
    assert edges_of(child) == EDGES
    assert buckets(child) == (1, 2, 0, 1)


def test_a_counter_that_began_anew_counts_from_nothing() -> None:
    assert since((5, 7), (4, 7)) == (1, 0)
    assert since((1, 0), (4, 7)) == (1, 0)
    assert per_second({"a": 3, "b": 1}, 1, {"a": 1}) == {"a": 2, "b": 1}


def test_versions_are_summed_bucket_by_bucket() -> None:
    one, other = VersionReading((1,), (1, 2), (3,), (4, 2)), VersionReading((2,), (3, 4), (5,), (8, 1))
    assert together([one, other]) == VersionReading((3,), (4, 6), (8,), (12, 3))
    assert together([one, other]).mean_batch == 4
    assert together([]) == VersionReading()
    assert VersionReading().mean_batch is None


def outcomes_of(reading: VersionReading, metrics: VersionMetrics) -> dict[str, float]:
    return dict(zip(metrics.requests, reading.outcomes, strict=True))


def test_a_versions_reading_is_its_own() -> None:
    metrics = Metrics()
    ours, other = (VersionMetrics(metrics, Target("digits", version)) for version in ("1.0", "1.1"))
    ours.requests["success"].inc(2)
    ours.seconds["success"].observe(0.03)
    ours.items.inc(3)
    ours.batches.inc()
    before = VersionReading.of(ours)
    other.requests["success"].inc()
    ours.requests["shed"].inc()
    ours.batch_limit.set(16)
    now = VersionReading.of(ours)
    assert (outcomes_of(now, ours)["success"], now.totals, sum(now.latency)) == (2, (3, 1), 1)
    new = now.since(before)
    assert {name: num for name, num in outcomes_of(new, ours).items() if num} == {"shed": 1}
    assert (new.totals, sum(new.latency)) == ((0, 0), 0)
    assert now.since(None) == now
    assert value(ours.batch_limit) == 16


def test_a_version_that_plays_a_role_again_has_no_requests_again() -> None:
    metrics = VersionMetrics(Metrics(), Target("digits", "1.0"))
    metrics.requests["success"].inc(1000)
    metrics.play("canary")
    before = VersionReading.of(metrics)
    metrics.requests["success"].inc(5)
    metrics.play("primary")
    metrics.requests["success"].inc(2)
    assert outcomes_of(VersionReading.of(metrics).since(before), metrics)["success"] == 7


def test_what_is_shown_is_short() -> None:
    assert per_second({"a": 3, "b": 0}, 2) == {"a": 1.5}
    assert per_second({"a": 3}, 0) == {}
    assert quantiles_ms(EDGES, ()) is None
    assert quantiles_ms(EDGES, (0, 0, 0, 0)) is None
    assert quantiles_ms(EDGES, (4, 0, 0, 0)) == [50, 95, 99]
    assert as_json({"a": 2.0, "b": [1 / 3, (0.0025,)], "c": None}) == b'{"a":2,"b":[0.3333,[0.0025]],"c":null}'
