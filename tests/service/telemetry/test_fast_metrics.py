"""Quick instruments show what prometheus_client's own would."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from service.telemetry.fast_metrics import QuickCounter, QuickHistogram

EDGES = (0.0, 0.001, 0.25, 1.0)
numbers = st.lists(st.one_of(st.sampled_from(EDGES), st.floats(0, 10)), max_size=20)


def shown(counter: type[Counter], histogram: type[Histogram], *readings: Sequence[float]) -> list[list[str]]:
    """Count and observe the same, reading in between; leave out when it began."""
    registry = CollectorRegistry()
    seen = counter("seen", "Seen.", ("kind",), registry=registry)
    seconds = histogram("seconds", "Seconds.", ("kind",), buckets=EDGES, registry=registry)
    pages = []
    for values in readings:
        for value in values:
            seen.labels("a").inc()
            seen.labels("b").inc(value)
            seconds.labels("a").observe(value)
        page = generate_latest(registry).decode()
        pages.append([line for line in page.splitlines() if "_created" not in line])
    return pages


@given(numbers, numbers)
def test_they_show_the_same(first: Sequence[float], second: Sequence[float]) -> None:
    assert shown(QuickCounter, QuickHistogram, first, second, ()) == shown(Counter, Histogram, first, second, ())


def test_a_version_that_left_is_forgotten() -> None:
    registry = CollectorRegistry()
    seen = QuickCounter("seen", "Seen.", ("model", "version"), registry=registry)
    seen.labels("digits", "1.0").inc()
    seen.remove_by_labels({"model": "digits", "version": "1.0"})
    assert b'version="1.0"' not in generate_latest(registry)
