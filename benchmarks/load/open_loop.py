"""Requests by a schedule, whatever happens to the ones before; `benchmarks.load.generator` sends them."""

import json
import random
import subprocess
import sys
from typing import Any

from benchmarks.environment.folders import ROOT
from benchmarks.load.endpoint import Endpoint


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Return the times of a Poisson process: independent callers, `rate` of them each second on average."""
    source = random.Random(seed)  # noqa: S311 - a schedule
    times, now = [], source.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += source.expovariate(rate)
    return times


def open_loop(endpoint: Endpoint, rate: float, seconds: float, objective_ms: float) -> dict[str, Any]:
    """Send `rate` requests a second, as independent callers would; return the figures of each status."""
    times = arrivals(rate, seconds, seed=0)
    plan = {
        "port": endpoint.port,
        "path": endpoint.path,
        "headers": endpoint.all_headers,
        "bodies": [str(path) for path in endpoint.bodies],
        "times": times,
        "which": [number % len(endpoint.bodies) for number in range(len(times))],
        "objective_ms": objective_ms,
    }
    command = [sys.executable, "-m", "benchmarks.load.generator"]
    done = subprocess.run(
        command, input=json.dumps(plan), capture_output=True, text=True, timeout=seconds + 120, check=False, cwd=ROOT
    )
    if done.returncode != 0:
        raise RuntimeError(f"open loop failed: {done.stderr[-1000:]}")
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome
