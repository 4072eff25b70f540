"""What processes have measured, as plain data that can be sent, and several of them as one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

Key = tuple[str, tuple[tuple[str, str], ...]]  # a sample's name and labels

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
LEAST = frozenset({"torchgate_model_ready", "process_start_time_seconds", "process_max_fds"})
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


def families_of(registry: Collector) -> Families:
    """Return all that is in a registry."""
    found = {}
    for metric in registry.collect():
        samples = {(each.name, tuple(each.labels.items())): float(each.value) for each in metric.samples}
        found[metric.name] = Family(metric.name, metric.documentation, metric.type, samples)
    return found


def packed(families: Families) -> list[Any]:
    """Return them as JSON can have them."""
    return [
        [each.name, each.documentation, each.kind, [[*key, value] for key, value in each.samples.items()]]
        for each in families.values()
    ]


def unpacked(document: Iterable[Any]) -> Families:
    """Return what `packed` gave."""
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
                into.samples[key] = value if held is None else _both(family, key[0], held, value)
    return result


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


def _both(family: Family, sample: str, one: float, other: float) -> float:
    if sample.endswith("_created"):
        return min(one, other)
    if family.kind in COUNTED or family.name in SUMMED:
        return one + other
    return min(one, other) if family.name in LEAST else max(one, other)


def _version(key: Key) -> tuple[str, str] | None:
    labels = dict(key[1])
    return (labels["model"], labels["version"]) if labels.keys() >= {"model", "version"} else None
