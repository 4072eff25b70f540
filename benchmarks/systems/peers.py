"""Mosec and LitServe, each at its best by their documentation's settings; and every system by name."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence

import psutil

from benchmarks.environment.folders import ROOT
from benchmarks.environment.machine import fair_environment
from benchmarks.environment.processes import free_ports, running
from benchmarks.peers import variables
from benchmarks.systems.gateway import gateway
from benchmarks.systems.running import NUM_WORKERS, Running, System, endpoint_of, log_of, ready
from benchmarks.systems.torchserve import batching, stock
from benchmarks.workloads.workload import Workload

# The best on two cores by `python -m benchmarks peers`, which sweeps the settings: the largest throughput at 64
# clients, and of equals the shorter wait, which is the better one at 1 and 8 clients.
LITSERVE = {variables.MAX_BATCH_SIZE: "16", variables.MAX_WAIT_MS: "1"}
MOSEC = {variables.MAX_BATCH_SIZE: "32", variables.MAX_WAIT_MS: "1"}


@contextlib.contextmanager
def litserve(workload: Workload, chosen: Mapping[str, str] = LITSERVE) -> Iterator[Running]:
    """LitServe with batching and its ZeroMQ queue."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "benchmarks.peers.litserve_server", str(port)]
    with _running("litserve", command, workload, chosen) as (process, settings):
        endpoint = endpoint_of(workload, port, "/predict", is_json=True)
        yield ready(Running(endpoint, process, settings=settings), workload, log_of("litserve", workload))


@contextlib.contextmanager
def mosec(workload: Workload, chosen: Mapping[str, str] = MOSEC) -> Iterator[Running]:
    """Mosec with dynamic batching."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "benchmarks.peers.mosec_server", "--address", "127.0.0.1", "--port", str(port)]
    command += ["--timeout", "20000", "--log-level", "warning"]
    with _running("mosec", command, workload, chosen) as (process, settings):
        endpoint = endpoint_of(workload, port, "/inference")
        yield ready(Running(endpoint, process, settings=settings), workload, log_of("mosec", workload))


@contextlib.contextmanager
def _running(
    name: str, command: Sequence[str], workload: Workload, chosen: Mapping[str, str]
) -> Iterator[tuple[psutil.Process, Mapping[str, str]]]:
    settings = {**chosen, variables.NUM_WORKERS: str(NUM_WORKERS)}
    env = {**fair_environment(), **settings, variables.FOLDER: str(workload.folder), "PYTHONPATH": str(ROOT)}
    with running(command, log_of(name, workload), env) as process:
        yield process, settings


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
