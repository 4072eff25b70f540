"""The gateway alone: its backend answers at once, so that what is left is HTTP, parsing, queues and JSON.

Beside it a bare ASGI application under the same server; each has one core, and wrk the other.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.environment.places import PYTHON, ROOT, WORK
from benchmarks.environment.processes import free_ports, running, tail
from benchmarks.load.closed_loop import closed_loop
from benchmarks.load.endpoint import Endpoint
from benchmarks.systems.running import endpoint_of
from benchmarks.tasks.task import Put
from benchmarks.workloads.workload import Unavailable, Workload

START_SECONDS = 30


@dataclass(frozen=True)
class Edge:
    """The gateway alone, or the bare application, at several numbers of clients."""

    kind: str  # bare, gateway
    workload: Workload
    clients: tuple[int, ...]
    seconds: float
    options: Mapping[str, str] = field(default_factory=dict)  # the gateway's settings, over its defaults

    @property
    def key(self) -> str:
        """Return its key."""
        return f"edge-{self.kind}/{self.workload.name}"

    @property
    def cells(self) -> Sequence[str]:
        """Return the numbers of clients."""
        return [str(clients) for clients in self.clients]

    def run(self, wanted: Sequence[str], put: Put) -> None:
        """Measure throughput and the server's CPU time for each request."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise Unavailable("server and generator need a core each")
        (port,) = free_ports(1)
        endpoint = endpoint_of(self.workload, port, "/predict")
        command: list[str | Path] = [
            "taskset",
            "-c",
            str(cores[0]),
            PYTHON,
            "-m",
            "benchmarks.costs.edge_server",
            self.kind,
        ]
        log = WORK / "logs" / f"edge-{self.kind}.log"
        with running(
            [*command, self.kind, self.workload.store, str(port)], log, {"PYTHONPATH": str(ROOT), **self.options}
        ) as process:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(endpoint):
                if time.monotonic() > deadline or not process.is_running():
                    raise RuntimeError(f"edge-{self.kind} does not answer:\n{tail(log)}")
                time.sleep(0.1)
            closed_loop(endpoint, 64, 1, core=cores[1])
            for cell in wanted:
                before = process.cpu_times()
                outcome = closed_loop(endpoint, int(cell), self.seconds, core=cores[1])
                after = process.cpu_times()
                spent = after.user + after.system - before.user - before.system
                put(cell, {**outcome, "cpu_us_per_request": spent / outcome["requests"] * 1e6})


def _answers(endpoint: Endpoint) -> bool:
    headers = {"Content-Type": endpoint.content_type}
    try:
        return httpx.post(endpoint.url, content=b"image", headers=headers, timeout=5).status_code == 200
    except httpx.TransportError:
        return False
