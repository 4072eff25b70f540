"""The page that Prometheus scrapes, written a few lines at a time, so that no request waits for all of it.

prometheus_client writes it in one go: with 50 versions that held up the event loop for as long as a big batch takes.
The lines are the same but for `_created`, which Prometheus would keep as one more series for each child.
https://prometheus.io/docs/instrumenting/exposition_formats/ has the text format,
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md the other.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

Child = tuple[Mapping[str, str], Iterable[Sample]]  # its labels; its samples' names come after the metric's
# Under a millisecond's work on a slow core.
LINES_PER_TURN = 100


async def expose(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the page in the format that `accept` asks for, and its content type; other tasks run meanwhile."""
    _, content_type = choose_encoder(accept)
    is_openmetrics = content_type.startswith("application/openmetrics-text")
    page: list[str] = []
    num_lines = 0
    for lines in _pieces(registry, is_openmetrics=is_openmetrics):
        page += lines
        if len(page) - num_lines >= LINES_PER_TURN:
            num_lines = len(page)
            await asyncio.sleep(0)
    if is_openmetrics:
        page.append("# EOF\n")
    return "".join(page).encode(), content_type


def _pieces(registry: CollectorRegistry, *, is_openmetrics: bool) -> Iterator[list[str]]:
    """Yield lines; those of one child, or of a collector that has no children, come together."""
    for family, children in _walk(registry):
        yield _head(family.name, family.type, family.documentation, is_openmetrics=is_openmetrics)
        for labels, samples in children:
            yield _lines(family.name, _labels(labels), samples)


def _walk(registry: CollectorRegistry) -> Iterator[tuple[Metric, Iterator[Child]]]:
    """Yield each metric without its samples, and its children one by one: the caller may pause between any two."""
    for collector in list(registry._collector_to_names):  # noqa: SLF001 - collect() builds every child at once
        if isinstance(collector, MetricWrapperBase):
            (family,) = collector.describe()
            yield family, _children(collector)
        else:
            for family in collector.collect():
                samples = [sample._replace(name=sample.name.removeprefix(family.name)) for sample in family.samples]
                yield family, iter([({}, samples)])


def _children(metric: MetricWrapperBase) -> Iterator[Child]:
    """Yield a metric's children; a metric without labels is its own child."""
    if not metric._is_parent():  # type: ignore[no-untyped-call]  # noqa: SLF001
        yield {}, metric._samples()  # noqa: SLF001
        return
    names = metric._labelnames  # noqa: SLF001
    with metric._lock:  # noqa: SLF001
        children = list(metric._metrics.items())  # noqa: SLF001
    for values, child in children:
        yield dict(zip(names, values, strict=True)), child._samples()  # noqa: SLF001


def _head(name: str, kind: str, documentation: str, *, is_openmetrics: bool) -> list[str]:
    text = documentation.replace("\\", r"\\").replace("\n", r"\n")
    if is_openmetrics:
        text = text.replace('"', r"\"")
    else:
        # Before OpenMetrics a counter was called what its sample is, and there was no type for facts.
        name += {"counter": "_total", "info": "_info"}.get(kind, "")
        kind = {"info": "gauge", "unknown": "untyped"}.get(kind, kind)
    return [f"# HELP {name} {text}\n", f"# TYPE {name} {kind}\n"]


def _lines(name: str, labels: str, samples: Iterable[Sample]) -> list[str]:
    lines = []
    for suffix, own, value, *_ in samples:
        if suffix == "_created":
            continue
        text = labels if not own else f"{labels}{',' if labels else ''}{_labels(own)}"
        if text:
            text = f"{{{text}}}"
        lines.append(f"{name}{suffix}{text} {floatToGoString(value)}\n")  # type: ignore[no-untyped-call]
    return lines


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(
        '{}="{}"'.format(name, value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\""))
        for name, value in sorted(labels.items())
    )
