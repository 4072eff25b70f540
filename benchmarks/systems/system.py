"""A system under test, and how the harness knows that it answers."""

import contextlib
import http.client
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.environment.folders import WORK
from benchmarks.load.endpoint import Endpoint
from benchmarks.peers.variables import EXPECTED
from benchmarks.workloads.workload import Workload

NUM_WORKERS = 2
START_SECONDS = 180.0


@dataclass(frozen=True)
class Running:
    """A system that answers."""

    endpoint: Endpoint
    process: psutil.Process  # the gateway's where there is one
    direct: Endpoint | None = None  # past the gateway, to the TorchServe behind it


System = Callable[[Workload], AbstractContextManager[Running]]


def ready(found: Running, workload: Workload, log: Path) -> Running:
    """Return once the system answers every body; RuntimeError if its answer is not that of the raw graph."""
    expected = json.loads((workload.folder / EXPECTED).read_text())
    endpoint = found.endpoint

    def answers() -> bool:
        with httpx.Client(timeout=20, headers=endpoint.all_headers) as client:
            for path in endpoint.bodies:
                answer = client.post(endpoint.url, content=path.read_bytes())
                if answer.status_code != 200:
                    return False
                if best_class(answer.json()) != expected[path.stem]:
                    where = f"{log.stem} answers {answer.text[:200]} for {path.name}"
                    raise RuntimeError(f"{where}, not {expected[path.stem]}")
        return True

    wait_for(found.process, log, answers)
    return found


def best_class(answer: Any) -> str:
    """Return the most probable label of one answer, whichever system gave it."""
    first = answer["predictions"][0] if "predictions" in answer else answer
    return str(first["top_k"][0]["label"])


def wait_for(process: psutil.Process, log: Path, is_there: Callable[[], bool]) -> None:
    """Return once `is_there` is true; RuntimeError with the log's end if the process ends, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(httpx.TransportError, http.client.HTTPException, json.JSONDecodeError):
            if is_there():
                return
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE or time.monotonic() > deadline:
            raise RuntimeError(f"{log.stem} does not answer:\n{log.read_text(errors='replace')[-1500:]}")
        time.sleep(0.2)


def endpoint_of(workload: Workload, port: int, path: str, *, is_json: bool = False) -> Endpoint:
    """Return where a system takes the workload's images."""
    content_type = "application/json" if is_json else workload.content_type
    bodies = workload.bodies("json" if is_json else "raw")
    return Endpoint(port, path, content_type, bodies, dict(workload.headers))


def log_of(name: str, workload: Workload) -> Path:
    """Return the log of a system that serves a workload."""
    return WORK / "logs" / f"{name}-{workload.name}.log"
