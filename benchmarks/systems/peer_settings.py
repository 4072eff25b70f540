"""Sweeps the settings that each peer's documentation names, so that the benchmark runs it at its best.

`python -m benchmarks peers`; the outcome is written into peers.py and torchserve.py by hand.
"""

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager

from benchmarks.load.closed_loop import closed_loop
from benchmarks.load.endpoint import settle
from benchmarks.peers import variables
from benchmarks.systems.peers import litserve, mosec
from benchmarks.systems.running import Running
from benchmarks.systems.torchserve import batching
from benchmarks.workloads.prepare import prepare
from benchmarks.workloads.workload import Workload

SIZES, WAITS_MS = (16, 32, 64), (1, 2, 5, 10)
CLIENTS = (1, 8, 64)


def candidates(workload: Workload) -> Iterator[tuple[str, AbstractContextManager[Running]]]:
    """Yield each peer under each setting, not started yet."""
    for size, wait_ms in itertools.product(SIZES, WAITS_MS):
        name = f"batches of {size}, wait {wait_ms} ms"
        chosen = {variables.MAX_BATCH_SIZE: str(size), variables.MAX_WAIT_MS: str(wait_ms)}
        for stages in ("1", "2"):
            settings = {**chosen, variables.STAGES: stages}
            yield f"mosec, {name}, stages {stages}", mosec(workload, settings)
        yield f"litserve, {name}", litserve(workload, chosen)
        settings_below = {"batch_size": size, "max_batch_delay": wait_ms}
        yield f"batching, {name}", batching(workload, settings_below)


def sweep(only: str, seconds: float) -> None:
    """Print throughput and median latency of every candidate whose name starts with `only`, on what clients send."""
    for name, system in candidates(prepare("small-jpeg", quick=True)):
        if not name.startswith(only):
            continue
        try:
            with system as running:
                closed_loop(running.endpoint, CLIENTS[-1], seconds)
                cells = []
                for clients in CLIENTS:
                    settle(running.endpoint)
                    outcome = closed_loop(running.endpoint, clients, seconds)
                    cells.append(f"{clients}: {outcome['throughput']:.0f}/s, {outcome['p50_ms']:.1f} ms")
        except RuntimeError as error:
            cells = [str(error).splitlines()[0]]
        print(f"{name}: {'; '.join(cells)}", flush=True)
