"""What processes have measured, as plain data that can be sent, and several of them as one."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

Key = tuple[str, tuple[tuple[str, str], ...]]  # a sample's name and labels
Child = tuple[Mapping[str, str], Iterable[Sample]]  # its labels; its samples' names come after the metric's
SAMPLES_PER_TURN = 100  # about half a millisecond

# Of gauges the largest of all processes is shown, but of these the sum, and of these the least.
SUMMED = frozenset(
    {
        "torchgate_processes",
        "torchgate_http_requests_in_progress",
        "torchgate_queue_depth",
        "torchgate_inflight_batches",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
    }
)
LEAST = frozenset({"torchgate_backend_up", "torchgate_model_ready", "process_start_time_seconds", "process_max_fds"})
DRIFT_SCORE, DRIFT_THRESHOLD = "torchgate_drift_score", "torchgate_drift_threshold"
COUNTED = frozenset({"counter", "histogram"})
PRESENT = "torchgate_model_ready"  # what a process exports of every version that it has


@dataclass
class Family:
    """One metric of one process, or of several."""

    name: str
    documentation: str
    kind: str
    samples: dict[Key, float] = field(default_factory=dict)


Families = Mapping[str, Family]


def walk(registry: CollectorRegistry) -> Iterator[tuple[Metric, Iterator[Child]]]:
    """Yield each metric, its samples aside, and its children one by one: there may be a pause between any two."""
    for collector in list(registry._collector_to_names):  # noqa: SLF001 - collect() makes whole families
        if isinstance(collector, MetricWrapperBase):
            (family,) = collector.describe()
            yield family, _children(collector)
        else:
            for family in collector.collect():
                samples = [sample._replace(name=sample.name.removeprefix(family.name)) for sample in family.samples]
                yield family, iter([({}, samples)])


def _children(metric: MetricWrapperBase) -> Iterator[Child]:
    """Yield them; a metric without labels is its own child."""
    if not metric._is_parent():  # type: ignore[no-untyped-call]  # noqa: SLF001
        yield {}, metric._samples()  # noqa: SLF001
        return
    names = metric._labelnames  # noqa: SLF001
    with metric._lock:  # noqa: SLF001
        children = list(metric._metrics.items())  # noqa: SLF001
    for values, child in children:
        yield dict(zip(names, values, strict=True)), child._samples()  # noqa: SLF001


async def packed(registry: CollectorRegistry) -> str:
    """Return what is in a registry as JSON for `unpacked`; other tasks run meanwhile."""
    families: list[str] = []
    num_waiting = 0
    for family, children in walk(registry):
        rows: list[str] = []
        for labels, samples in children:
            found = [
                json.dumps([family.name + suffix, [*labels.items(), *own.items()], value])
                for suffix, own, value, *_ in samples
                if suffix != "_created"
            ]
            rows += found
            num_waiting += len(found)
            if num_waiting >= SAMPLES_PER_TURN:
                num_waiting = 0
                await asyncio.sleep(0)
        head = json.dumps([family.name, family.documentation, family.type])
        families.append(f"{head[:-1]},[{','.join(rows)}]]")
    return f"[{','.join(families)}]"


def unpacked(document: Iterable[Any]) -> Families:
    """Return what `packed` gave, read as JSON."""
    return {
        name: Family(
            name,
            documentation,
            kind,
            {(sample, tuple((label, text) for label, text in labels)): value for sample, labels, value in samples},
        )
        for name, documentation, kind, samples in document
    }


def counted(families: Families) -> Families:
    """Return what stays true of a process that has ended: its counts."""
    return {name: each for name, each in families.items() if each.kind in COUNTED}


def merged(each_of: Sequence[Families]) -> Families:
    """Return several processes' metrics as those of one."""
    result: dict[str, Family] = {}
    for families in each_of:
        for family in families.values():
            into = result.setdefault(family.name, Family(family.name, family.documentation, family.kind))
            for key, value in family.samples.items():
                held = into.samples.get(key)
                into.samples[key] = value if held is None else _both(family, held, value)
    _show_worst_drift(result, each_of)
    return result


def _show_worst_drift(result: Families, each_of: Sequence[Families]) -> None:
    """Show each score beside what it is held against in the same process: where it is nearest to that, or beyond."""
    scores, thresholds = (result.get(name) for name in (DRIFT_SCORE, DRIFT_THRESHOLD))
    if scores is None or thresholds is None:
        return
    for _, labels in scores.samples:
        keys = (DRIFT_SCORE, labels), (DRIFT_THRESHOLD, labels)
        pairs = [
            (families[DRIFT_SCORE].samples[keys[0]], families[DRIFT_THRESHOLD].samples[keys[1]])
            for families in each_of
            if DRIFT_SCORE in families and keys[0] in families[DRIFT_SCORE].samples
        ]
        scores.samples[keys[0]], thresholds.samples[keys[1]] = max(pairs, key=lambda pair: pair[0] / pair[1])


def without_the_gone(departed: Families, alive: Sequence[Families]) -> Families:
    """Return the counts of ended processes, less those of versions that no living process has."""
    present = {_version(key) for families in alive if PRESENT in families for key in families[PRESENT].samples}

    def is_kept(key: Key) -> bool:
        version = _version(key)
        return version is None or version in present

    return {
        name: replace(each, samples={key: num for key, num in each.samples.items() if is_kept(key)})
        for name, each in departed.items()
    }


def registry_of(families: Families) -> CollectorRegistry:
    """Return a registry that has these."""
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    return registry


class _Collected(Collector):
    """Families as a collector has them."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Yield them."""
        for each in self._families.values():
            metric = Metric(each.name, each.documentation, each.kind)
            metric.samples = [Sample(name, dict(labels), value) for (name, labels), value in each.samples.items()]
            yield metric


def _both(family: Family, one: float, other: float) -> float:
    if family.kind in COUNTED or family.name in SUMMED:
        return one + other
    return min(one, other) if family.name in LEAST else max(one, other)


def _version(key: Key) -> tuple[str, str] | None:
    labels = dict(key[1])
    return (labels["model"], labels["version"]) if labels.keys() >= {"model", "version"} else None
