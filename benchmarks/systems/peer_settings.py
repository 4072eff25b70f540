"""Sweeps the settings that each peer's documentation names, so that the benchmark runs it at its best.

`python -m benchmarks peers`; the outcome is written into peers.py and torchserve.py by hand.
"""

import itertools
from contextlib import AbstractContextManager

from benchmarks.load.closed_loop import closed_loop, settle
from benchmarks.peers import variables
from benchmarks.systems.peers import litserve, mosec
from benchmarks.systems.running import Running
from benchmarks.systems.torchserve import batching
from benchmarks.workloads.prepare import prepare

SIZES, WAITS_MS = (16, 32, 64), (1, 2, 5, 10)
CLIENTS = (1, 8, 64)


def sweep(only: str, seconds: float) -> None:
    """Print throughput and median latency of each peer whose name starts with `only`, under each setting."""
    workload = prepare("small-jpeg", quick=True)
    for size, wait_ms in itertools.product(SIZES, WAITS_MS):
        chosen = {variables.MAX_BATCH_SIZE: str(size), variables.MAX_WAIT_MS: str(wait_ms)}
        peers: dict[str, AbstractContextManager[Running]] = {
            "mosec": mosec(workload, chosen),
            "litserve": litserve(workload, chosen),
            "batching": batching(workload, {"batch_size": size, "max_batch_delay": wait_ms}),
        }
        for name, system in peers.items():
            if name.startswith(only):
                print(f"{name}, batches of {size}, wait {wait_ms} ms: {_measured(system, seconds)}", flush=True)


def _measured(system: AbstractContextManager[Running], seconds: float) -> str:
    cells = []
    try:
        with system as running:
            closed_loop(running.endpoint, CLIENTS[-1], seconds)
            for clients in CLIENTS:
                settle(running.endpoint)
                outcome = closed_loop(running.endpoint, clients, seconds)
                cells.append(f"{clients}: {outcome['throughput']:.0f}/s, {outcome['p50_ms']:.1f} ms")
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "; ".join(cells)
