"""Does a shadow cost the version that answers anything? Paired runs with and without, in one gateway."""

import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.environment.folders import WORK
from benchmarks.load.closed_loop import closed_loop
from benchmarks.systems.gateway import gateway
from benchmarks.workloads.own import own_workload

SHADOW = "int8-static"
CLIENTS = (1, 8, 32)
NUM_PAIRS = 8
SECONDS = 4.0
SHARE = 100


def run_shadow(store: Path) -> None:
    """Print throughput and latencies with and without a copy of every request, and what the comparison found."""
    workload = own_workload(store)
    shadow = f"{workload.version}-{SHADOW}"
    found: dict[tuple[int, bool], list[dict[str, Any]]] = {}
    state = WORK / "shadow.db"  # not the store's own, which has what its user decided
    state.unlink(missing_ok=True)
    options = {"TORCHGATE_DATABASE_URL": f"sqlite:///{state}"}
    with gateway("workers", store=store.resolve(), options=options)(workload) as running:
        base = f"http://127.0.0.1:{running.endpoint.port}"
        _until_ready(base, workload.model, shadow)
        closed_loop(running.endpoint, 32, SECONDS)
        for pair in range(NUM_PAIRS):
            for is_shadowed in (False, True) if pair % 2 else (True, False):
                _copy(base, workload.model, workload.version, {shadow: SHARE} if is_shadowed else {})
                for clients in CLIENTS:
                    outcome = closed_loop(running.endpoint, clients, SECONDS)
                    found.setdefault((clients, is_shadowed), []).append(outcome)
            print(f"pair {pair + 1} of {NUM_PAIRS}", flush=True)
        report = httpx.get(f"{base}/models/{workload.model}/shadows", timeout=10).json()["shadows"]
    print(f"\n| {workload.model} {workload.version}, shadow {shadow} | requests/s | p50, ms | p99, ms |")
    print("|---|---|---|---|")
    for (clients, is_shadowed), outcomes in sorted(found.items()):
        cells = [_spread([each[name] for each in outcomes]) for name in ("throughput", "p50_ms", "p99_ms")]
        print(f"| {clients} clients, {'every request copied' if is_shadowed else 'none'} | {' | '.join(cells)} |")
    for each in report:
        print(
            f"\n{each['num_items']} images compared: {each['agreement']:.4%} of the same class, largest difference "
            f"{each['largest_difference']:.3g}; {each['num_shed']} copies dropped, {each['num_failed']} failed"
        )


def _until_ready(base: str, model: str, version: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        versions = httpx.get(f"{base}/models/{model}", timeout=10).json()["versions"]
        if any(each["version"] == version and each["state"] == "ready" for each in versions):
            return
        time.sleep(0.2)
    raise RuntimeError(f"{version} does not get ready")


def _copy(base: str, model: str, version: str, shadows: dict[str, float]) -> None:
    body = {"weights": {version: 100}, "shadows": shadows}
    answer = httpx.put(f"{base}/models/{model}/traffic", json=body, headers={"If-Match": "*"}, timeout=10)
    answer.raise_for_status()


def _spread(values: list[float]) -> str:
    return f"{median(values):.4g} ({min(values):.4g}-{max(values):.4g})"
