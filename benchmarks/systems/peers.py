"""Mosec and LitServe, each at its best by their documentation's settings; and every system by name."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.environment.folders import ROOT
from benchmarks.environment.machine import fair_environment
from benchmarks.environment.processes import free_ports, running
from benchmarks.load.endpoint import Endpoint
from benchmarks.peers import variables
from benchmarks.systems.gateway import gateway
from benchmarks.systems.system import NUM_WORKERS, Running, System, endpoint_of, log_of, ready
from benchmarks.systems.torchserve import batching, stock
from benchmarks.workloads.workload import Workload

# The best on two cores of batches of 16, 32 and 64 and of waits of 1, 2, 5 and 10 ms: the largest throughput at 64
# clients, and of equals the shorter wait, which is the better one at 1 and 8 clients.
LITSERVE = {variables.MAX_BATCH_SIZE: "16", variables.MAX_WAIT_MS: "1"}
MOSEC = {variables.MAX_BATCH_SIZE: "32", variables.MAX_WAIT_MS: "1"}


@contextlib.contextmanager
def litserve(workload: Workload) -> Iterator[Running]:
    """LitServe with batching and its ZeroMQ queue."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "benchmarks.peers.litserve_server", str(port)]
    endpoint = endpoint_of(workload, port, "/predict", is_json=True)
    with _running("litserve", command, LITSERVE, workload, endpoint) as found:
        yield found


@contextlib.contextmanager
def mosec(workload: Workload) -> Iterator[Running]:
    """Mosec with dynamic batching."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "benchmarks.peers.mosec_server", "--address", "127.0.0.1", "--port", str(port)]
    command += ["--timeout", "20000", "--log-level", "warning"]
    with _running("mosec", command, MOSEC, workload, endpoint_of(workload, port, "/inference")) as found:
        yield found


@contextlib.contextmanager
def _running(
    name: str, command: Sequence[str], settings: Mapping[str, str], workload: Workload, endpoint: Endpoint
) -> Iterator[Running]:
    served = {variables.NUM_WORKERS: str(NUM_WORKERS), variables.FOLDER: str(workload.folder)}
    env = {**fair_environment(), **settings, **served, "PYTHONPATH": str(ROOT)}
    log = log_of(name, workload)
    with running(command, log, env) as process:
        yield ready(Running(endpoint, process), workload, log)


def systems() -> dict[str, System]:
    """Return every system by its name in the tables."""
    return {
        "stock": stock("stock", {}),  # as it comes: torch takes every core for each of its workers
        "stock-one-thread": stock("stock-one-thread", fair_environment()),
        "batching": batching,
        "grpc": gateway("grpc"),
        "rest": gateway("rest"),
        "workers": gateway("workers"),
        "litserve": litserve,
        "mosec": mosec,
    }
