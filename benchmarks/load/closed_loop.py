"""A fixed number of clients, each of which sends its next request once the last is answered: wrk, one thread."""

import json
import resource
import subprocess
from pathlib import Path
from typing import Any

import httpx

from benchmarks.load.endpoint import MARKER, Endpoint

SCRIPT = Path(__file__).with_name("closed_loop.lua")
# Longer than any server here holds a request; wrk counts what takes longer as an error.
TIMEOUT_SECONDS = 20
SETTLE_SECONDS = 60


def closed_loop(endpoint: Endpoint, clients: int, seconds: float, core: int | None = None) -> dict[str, Any]:
    """Return what `clients` callers saw for so long; wrk stays on one core if one is named.

    wrk corrects its percentiles for coordinated omission: a latency above twice the mean also counts for the requests
    that its client would have sent meanwhile. So tails look longer here than a plain percentile would, for everybody.
    `generator_us` is wrk's own CPU time for a request, which it takes from the cores that it shares with the server.
    """
    pin = [] if core is None else ["taskset", "-c", str(core)]
    command = [*pin, "wrk", "-t1", f"-c{clients}", f"-d{max(round(seconds), 1)}s", f"--timeout={TIMEOUT_SECONDS}s"]
    command += ["-s", str(SCRIPT), endpoint.url, "--", MARKER]
    command += [f"{name}: {value}" for name, value in endpoint.all_headers.items()]
    before = _cpu_seconds()
    done = subprocess.run(
        [*command, "--", *map(str, endpoint.bodies)], capture_output=True, text=True, timeout=seconds + 60, check=False
    )
    spent = _cpu_seconds() - before
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"wrk failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    outcome: dict[str, Any] = json.loads(lines[-1])
    outcome["num_errors"] = sum(outcome["errors"].values())
    # Refusals and errors come fast: counted as throughput they would flatter whoever fails.
    outcome["throughput"] = (outcome["requests"] - outcome["errors"]["status"]) / outcome["seconds"]
    outcome["generator_us"] = spent / max(outcome["requests"], 1) * 1e6
    return outcome


def _cpu_seconds() -> float:
    """Return the CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def settle(endpoint: Endpoint) -> None:
    """Return once one request is answered: what the callers of the last cell left behind is worked off by then."""
    content = endpoint.bodies[0].read_bytes()
    httpx.post(endpoint.url, content=content, headers=endpoint.all_headers, timeout=SETTLE_SECONDS).raise_for_status()
