"""The page of metrics: what Prometheus scrapes at /metrics."""

from deploy.reference.form import page, table
from service.telemetry.metrics import Metrics

INTRODUCTION = """\
Prometheus scrapes `/metrics`. Times are in seconds, sizes in bytes, ratios from 0 to 1. The usual `process_*` and \
`python_*` metrics of prometheus-client are there, too. Labels have bounded sets of values: no label holds what a \
client sent."""


def metrics_page() -> str:
    """Return the page."""
    rows = []
    for instrument in sorted(Metrics().instruments(), key=lambda each: each._name):
        (family,) = instrument.describe()
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = ", ".join(f"`{label}`" for label in instrument._labelnames)
        rows.append((f"`{family.name}{suffix}`", family.type, labels, family.documentation))
    return page("Metrics", INTRODUCTION, table(("metric", "type", "labels", "meaning"), rows))
