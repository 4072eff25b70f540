"""Measures pairs: both checkouts' gateways run side by side, and only one at a time has requests.

Both serve the same weights, each with the handler files of its own checkout, under this checkout's interpreter. A pair
is four turns, ABBA, then BAAB in the next one, so that what drifts slowly meets both alike. Both are started anew after
a few pairs: two processes of one program differ by a percent or two for as long as they live.
"""

import json
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.environment.folders import ROOT, WORK
from benchmarks.environment.machine import allocator, machine
from benchmarks.load.closed_loop import closed_loop, settle
from benchmarks.load.endpoint import Endpoint
from benchmarks.pairs.cells import Cell, Pair, cells, is_met, pair_of, table
from benchmarks.pairs.trees import checkout, describe
from benchmarks.systems.gateway import gateway
from benchmarks.workloads.prepare import prepare
from benchmarks.workloads.repack import store_with_handlers
from benchmarks.workloads.workload import Workload

PACKAGES = ("torch", "torchserve", "uvicorn", "fastapi", "grpcio")
WARM_UP_CLIENTS = 64


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    num_pairs: int
    pairs_per_start: int
    seconds: float  # of each turn
    warm_up_seconds: float


def run_pairs(against: str, only: str, plan: Plan) -> int:
    """Measure, print a table after each round, keep it as JSON, and return 1 if a bound is missed."""
    signal.signal(signal.SIGTERM, _leave)
    wanted = cells(only)
    if not wanted:
        raise SystemExit(f"--only {only}: names no cell")
    tree, other = checkout(against)
    workloads = {name: prepare(name, quick=True) for name in {cell.workload for cell in wanted}}
    where = f"{machine(PACKAGES)}; {allocator()} for all; turns of {plan.seconds:g} s"
    head = f"this: {describe(ROOT)}; other: {other}; {where}"
    print(head, flush=True)
    found: dict[Cell, list[Pair]] = {cell: [] for cell in wanted}
    path = WORK / "pairs" / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    groups = [list(group) for _, group in groupby(wanted, key=lambda cell: (cell.backend, cell.workload))]
    try:
        for start in range(0, plan.num_pairs, plan.pairs_per_start):
            for group in groups:
                numbers = range(start, min(start + plan.pairs_per_start, plan.num_pairs))
                _measure(group, workloads[group[0].workload], tree, plan, numbers, found)
                pairs = {cell.key: each for cell, each in found.items()}
                path.write_text(json.dumps({"what": head, "pairs": pairs}, indent=1))
            print(f"\n{table(found)}\n", flush=True)
    except KeyboardInterrupt:
        print(f"\nstopped\n\n{table(found)}\n", flush=True)
    print(f"{head}\n{path}")
    return 0 if all(pairs and is_met(cell, pairs) for cell, pairs in found.items()) else 1


def _measure(
    group: Sequence[Cell],
    workload: Workload,
    tree: Path,
    plan: Plan,
    numbers: Sequence[int],
    found: dict[Cell, list[Pair]],
) -> None:
    """Start both gateways over one backend with one workload, and add these pairs of each of its cells."""
    backend = group[0].backend
    with ExitStack() as stack:
        sides: dict[str, Endpoint] = {}
        order = ("this", "other") if numbers[0] // plan.pairs_per_start % 2 else ("other", "this")
        for side in order:
            sources, store = ROOT if side == "this" else tree, WORK / "pairs" / f"store-{side}-{workload.name}"
            shutil.rmtree(store, ignore_errors=True)
            store_with_handlers(workload, sources, store)
            system = gateway(backend, store=store, tree=sources, name=f"{backend}-pairs-{side}")
            sides[side] = stack.enter_context(system(workload)).endpoint
            closed_loop(sides[side], WARM_UP_CLIENTS, plan.warm_up_seconds)
        for number in numbers:
            for cell in group:
                turns: dict[str, list[dict[str, Any]]] = {"this": [], "other": []}
                first, second = ("this", "other") if number % 2 else ("other", "this")
                for side in (first, second, second, first):
                    settle(sides[side])
                    turns[side].append(closed_loop(sides[side], cell.clients, plan.seconds))
                pair = pair_of(turns["this"], turns["other"])
                found[cell].append(pair)
                ratios = ", ".join(f"{name} {value:.3f}" for name, value in pair["ratios"].items())
                print(f"  pair {number + 1}, {cell.key}: {ratios}", flush=True)


def _leave(*_: object) -> None:
    """Stop as by Ctrl-C: what was started is stopped on the way out."""
    raise KeyboardInterrupt
