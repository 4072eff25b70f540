"""The rows of each kind of run."""

from collections.abc import Mapping, Sequence

from benchmarks.costs.edge import edge
from benchmarks.suite.modes import Mode
from benchmarks.tasks.overload import overload
from benchmarks.tasks.raw import raw
from benchmarks.tasks.serving import serving
from benchmarks.tasks.task import Task
from benchmarks.workloads.workload import Name, Workload


def tasks(mode: Mode, workloads: Mapping[Name, Workload]) -> Sequence[Task]:
    """Return everything that the mode measures, as far as its workload could be built."""
    found: list[Task] = []
    for name, workload in workloads.items():
        rows = mode.rows[name]
        seconds = mode.big_seconds if name == "big" else mode.seconds
        if name != "small-int8":
            found.append(raw(workload, mode.raw_seconds * (2 if name == "big" else 1)))
        for system in rows.systems:
            direct = (1,) if (system, name) == ("grpc", "small-jpeg") else ()
            found.append(serving(system, workload, rows.clients, seconds, mode.warm_up_seconds, direct))
    if jpeg := workloads.get("small-jpeg"):
        found += [edge(kind, jpeg, mode.edge_clients, mode.edge_seconds) for kind in ("bare", "gateway")]
        found += [overload(each, jpeg, mode.overload_seconds, mode.seconds) for each in mode.overloaded]
    return found
