"""Requests by a schedule, whatever became of the ones before; `benchmarks.load.generator` sends them."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence
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
        "headers": endpoint.all_headers,
        "bodies": [str(path) for path in endpoint.bodies],
        "times": list(times),
        "which": list(which),
        "objective_ms": objective_ms,
        "keep_records": keep_records,
    }
    command = [sys.executable, "-m", "benchmarks.load.generator"]
    done = subprocess.run(
        command, input=json.dumps(plan), capture_output=True, text=True, timeout=times[-1] + 120, check=False, cwd=ROOT
    )
    if done.returncode != 0:
        raise RuntimeError(f"open loop failed: {done.stderr[-1000:]}")
    outcome: dict[str, Any] = json.loads(done.stdout)
    return outcome
