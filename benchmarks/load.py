"""The two generators, the same for every system: wrk with a fixed number of clients, open_loop by a schedule."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.open_loop import arrivals
from benchmarks.places import ROOT

SCRIPT = Path(__file__).with_name("closed_loop.lua")
# Longer than any server here holds a request; wrk counts what takes longer as an error.
TIMEOUT_SECONDS = 20
SETTLE_SECONDS = 60


@dataclass(frozen=True)
class Endpoint:
    """Where and how a system takes an image."""

    port: int
    path: str
    content_type: str
    bodies: list[Path]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The whole address."""
        return f"http://127.0.0.1:{self.port}{self.path}"


def settle(endpoint: Endpoint) -> None:
    """Return once one request is answered: what the callers of the last cell left behind is worked off by then."""
    headers = {"Content-Type": endpoint.content_type, **endpoint.headers}
    content = endpoint.bodies[0].read_bytes()
    httpx.post(endpoint.url, content=content, headers=headers, timeout=SETTLE_SECONDS).raise_for_status()


def closed_loop(endpoint: Endpoint, clients: int, seconds: float, core: int | None = None) -> dict[str, Any]:
    """Let `clients` callers each send their next request once the last is answered; pinned to a core if one is named.

    wrk corrects its percentiles for coordinated omission: a latency above twice the mean also counts for the requests
    that its client would have sent meanwhile. So tails look longer here than a plain percentile would, for everybody.
    """
    pin = [] if core is None else ["taskset", "-c", str(core)]
    command = [*pin, "wrk", "-t1", f"-c{clients}", f"-d{max(round(seconds), 1)}s", f"--timeout={TIMEOUT_SECONDS}s"]
    command += ["-s", str(SCRIPT), endpoint.url, "--", endpoint.content_type, *map(str, endpoint.bodies)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"wrk failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    outcome: dict[str, Any] = json.loads(lines[-1])
    outcome["num_errors"] = sum(outcome["errors"].values())
    # Refusals and errors come fast: counted as throughput they would flatter whoever fails.
    outcome["throughput"] = (outcome["requests"] - outcome["errors"]["status"]) / outcome["seconds"]
    return outcome


def open_loop(endpoint: Endpoint, rate: float, seconds: float, objective_ms: float, seed: int = 0) -> dict[str, Any]:
    """Send `rate` requests a second, as independent callers would, and charge latencies from when they were due."""
    times = arrivals(rate, seconds, seed)
    outcome = scheduled(endpoint, times, [number % len(endpoint.bodies) for number in range(len(times))], objective_ms)
    outcome["rate"], outcome["seconds"] = rate, seconds
    return outcome


def scheduled(
    endpoint: Endpoint, times: Sequence[float], which: Sequence[int], objective_ms: float, keep_records: bool = False
) -> dict[str, Any]:
    """Send bodies[which[i]] at times[i] seconds."""
    plan = {
        "port": endpoint.port,
        "path": endpoint.path,
        "headers": {"Content-Type": endpoint.content_type, **endpoint.headers},
        "bodies": [str(path) for path in endpoint.bodies],
        "times": list(times),
        "which": list(which),
        "objective_ms": objective_ms,
        "keep_records": keep_records,
    }
    command = [sys.executable, "-m", "benchmarks.open_loop"]
    done = subprocess.run(
        command, input=json.dumps(plan), capture_output=True, text=True, timeout=times[-1] + 120, check=False, cwd=ROOT
    )
    if done.returncode != 0:
        raise RuntimeError(f"open_loop failed: {done.stderr[-1000:]}")
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome
