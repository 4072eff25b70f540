"""What the dashboards are made of: queries, panels, rows and boards, and the expressions that recur."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# What every query of a version is narrowed to; `rate` and the like look over $__rate_interval, four scrapes or more.
VERSION = 'model=~"$model",version=~"$version"'
WINDOW = "[$__rate_interval]"

Kind = Literal["timeseries", "stat", "heatmap", "state-timeline", "table"]
Steps = Sequence[tuple[float, str]]
GREEN: Steps = ()


@dataclass(frozen=True)
class Query:
    """A PromQL expression and what its series are called.

    `optional`: its metrics may be missing from a gateway; a test asks for data only where they are there.
    `dashed`: a bound that the other series are compared with.
    """

    expr: str
    legend: str = ""
    optional: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One picture: what it shows, in which unit, and from where on it is worrying."""

    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = 8
    thresholds: Steps = GREEN
    stacked: bool = False
    least: float | None = 0
    most: float | None = None
    names: Sequence[tuple[float, str, str]] = ()  # of values: the value, its name and its colour
    see: str = ""  # the uid of the board to look at next
    columns: Sequence[str] = ()  # a table's, in order


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]
    height: int = 8


@dataclass(frozen=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of every board, of the values that a label has."""

    name: str
    label: str
    metric: str

    @property
    def query(self) -> str:
        """Return what Grafana asks for."""
        return f"label_values({self.metric}, {self.name})"


MODEL = Variable("model", "Model", "torchgate_model_info")
VERSIONS = Variable("version", "Version", 'torchgate_model_info{model=~"$model"}')
VARIABLES = (MODEL, VERSIONS)
ROLLOUTS = Query('sum by (model, event) (increase(torchgate_rollout_events_total{model=~"$model"}[1m])) > 0')


def quantile(share: float, histogram: str, labels: str, by: str = "") -> str:
    """Return the expression for a quantile of a histogram, over all that has the same `by`."""
    groups = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({groups}) (rate({histogram}_bucket{{{labels}}}{WINDOW})))"


def mean(histogram: str, labels: str, by: str) -> str:
    """Return the expression for a histogram's mean."""
    return f"{rate(f'{histogram}_sum', labels, by)} / {rate(f'{histogram}_count', labels, by)}"


def rate(counter: str, labels: str, by: str = "") -> str:
    """Return the expression for how much a counter grows in a second."""
    return f"sum{f' by ({by})' if by else ''} (rate({counter}{{{labels}}}{WINDOW}))"


def heat(histogram: str, labels: str, *, optional: bool = False) -> Query:
    """Return the query of a heatmap."""
    return Query(f"sum by (le) (increase({histogram}_bucket{{{labels}}}{WINDOW}))", "{{le}}", optional)
