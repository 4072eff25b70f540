"""The gateway alone: its backend answers at once, so that what is left is HTTP, parsing, queues and JSON.

Beside it a bare ASGI application under the same server; each has one core, and wrk the other.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from benchmarks.environment.folders import PYTHON, ROOT, WORK
from benchmarks.environment.machine import fair_environment
from benchmarks.environment.processes import free_ports, running
from benchmarks.load.closed_loop import closed_loop, settle
from benchmarks.systems.system import endpoint_of, wait_for
from benchmarks.tasks.task import Put, Task
from benchmarks.workloads.workload import Unavailable, Workload


def edge(
    kind: str,
    workload: Workload,
    clients: Sequence[int],
    seconds: float,
    options: Mapping[str, str] | None = None,
    path: str = "/predict",
) -> Task:
    """Return the row of the gateway alone or the bare application, with the gateway's settings over its defaults."""

    def run(wanted: Sequence[str], put: Put) -> None:
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise Unavailable("server and generator need a core each")
        (port,) = free_ports(1)
        endpoint = endpoint_of(workload, port, path)
        command: list[str | Path] = ["taskset", "-c", str(cores[0]), PYTHON, "-m", "benchmarks.costs.edge_server"]
        command += [kind, workload.store, str(port)]
        log = WORK / "logs" / f"edge-{kind}.log"

        def answers() -> bool:
            try:
                settle(endpoint)
            except httpx.HTTPStatusError:
                return False
            return True

        with running(command, log, {**fair_environment(), "PYTHONPATH": str(ROOT), **(options or {})}) as process:
            wait_for(process, log, answers)
            closed_loop(endpoint, 64, 1, core=cores[1])
            for cell in wanted:
                before = process.cpu_times()
                outcome = closed_loop(endpoint, int(cell), seconds, core=cores[1])
                after = process.cpu_times()
                spent = after.user + after.system - before.user - before.system
                put(cell, {**outcome, "cpu_us_per_request": spent / outcome["requests"] * 1e6})

    return Task(f"edge-{kind}/{workload.name}", [str(each) for each in clients], run)
