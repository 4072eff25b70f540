"""The page that Prometheus scrapes, written a few lines at a time, so that no request waits for all of it.

prometheus_client writes it in one go: with 50 versions that held up the event loop for as long as a big batch takes.
The lines are the same but for `_created`, which Prometheus would keep as one more series for each child.
https://prometheus.io/docs/instrumenting/exposition_formats/ has the text format,
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md the other.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from service.families import walk

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
    for family, children in walk(registry):
        yield _head(family.name, family.type, family.documentation, is_openmetrics=is_openmetrics)
        for labels, samples in children:
            yield _lines(family.name, _labels(labels), samples)


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
