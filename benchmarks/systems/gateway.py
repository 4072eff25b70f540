"""torchgate over one of its backends, from this checkout or another one."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.environment.folders import PYTHON, ROOT
from benchmarks.environment.machine import fair_environment
from benchmarks.environment.processes import free_ports, running, without_settings
from benchmarks.systems.system import Running, System, endpoint_of, log_of, ready
from benchmarks.systems.torchserve import direct, torchserve
from benchmarks.workloads.workload import Workload

ORIGIN = "import service; print(service.__file__)"


def gateway(
    backend: str,
    *,
    store: Path | None = None,
    options: Mapping[str, str] | None = None,
    tree: Path = ROOT,
    name: str = "",
) -> System:
    """Return torchgate with its defaults, apart from `options`, by the sources of a checkout.

    `store` takes the place of the workload's; `name` is the log's, the backend's if it is not given.
    """
    chosen = dict(options or {})

    @contextlib.contextmanager
    def system(workload: Workload) -> Iterator[Running]:
        served, log = store or workload.store, log_of(name or backend, workload)
        env = {**fair_environment(), "PYTHONPATH": str(tree), "TORCHGATE_BACKEND": backend}
        env |= {"TORCHGATE_LOG_LEVEL": "warning"} | chosen
        _check(env, tree)
        (port,) = free_ports(1)
        env |= {"TORCHGATE_PORT": str(port), "TORCHGATE_MODEL_STORE": str(served)}
        env["TORCHGATE_DEFAULT_MODEL"] = workload.model
        with contextlib.ExitStack() as stack:
            below = None
            if backend != "workers":
                log_below = log.with_name(f"{log.stem}-torchserve.log")
                ports, _ = stack.enter_context(torchserve(served, log_below, {**fair_environment(), **chosen}, tree))
                env |= {f"TORCHGATE_TORCHSERVE_{each.upper()}_PORT": str(number) for each, number in ports.items()}
                below = direct(workload, ports["rest"])
            process = stack.enter_context(running([PYTHON, "-m", "service", "serve"], log, env, cwd=tree))
            yield ready(Running(endpoint_of(workload, port, "/predict"), process, below), workload, log)

    return system


def _check(env: Mapping[str, str], tree: Path) -> None:
    """Raise RuntimeError if the sources of another checkout would run."""
    env = {**without_settings(os.environ), **env}
    done = subprocess.run([PYTHON, "-c", ORIGIN], env=env, cwd=tree, capture_output=True, text=True, check=True)
    if not Path(done.stdout.strip()).is_relative_to(tree):
        raise RuntimeError(f"{done.stdout.strip()} would run, not the sources of {tree}")
