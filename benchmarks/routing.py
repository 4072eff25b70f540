"""What it costs a request to be routed: by weights, by key, by label, beside the naming of a version."""

import statistics
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from service.batching.batcher import Batcher
from service.batching.queue import BatchLimits
from service.domain.archive import Archive
from service.domain.backend import Target
from service.domain.contract import Contract
from service.domain.model_state import ModelState, VersionRecord
from service.domain.traffic import Policy
from service.monitoring.signed_ids import PredictionIds
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler, ReconcilerView
from service.serving.router import Router
from service.serving.shadow_traffic import Shadows
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import VersionMetrics

NUM_CALLS = 20_000
REPEATS = 15
TARGET_US = 20.0
VERSIONS = ("1.0", "1.1", "1.2")


def run_routing() -> int:
    """Print the time of each way, and return 1 if one takes longer than it may."""
    fleet, registry = _served()
    router, prediction_ids = Router(fleet, registry, None), PredictionIds()
    prediction_ids.use(b"k" * 32)
    shadows = Shadows(fleet, registry, Metrics(), 1000)
    state = registry.models["digits"]
    split = Policy.all_to("1.0").reweighed({"1.0": 70, "1.1": 20, "1.2": 10})
    primary = router.route("digits", "1.0", None, {})
    keyed = {b"x-routing-key": b"user-4711", b"host": b"localhost"}
    print("| way | µs, median (least-largest) |\n|---|---|")
    worst = 0.0
    for name, policy, call in (
        ("version named", split, lambda: router.route("digits", "1.1", None, {})),
        ("label", split, lambda: router.route("digits", None, "canary", {})),
        ("all traffic at one version", Policy.all_to("1.0"), lambda: router.route(None, None, None, {})),
        ("three versions, no key", split, lambda: router.route(None, None, None, {})),
        ("three versions, by key", split, lambda: router.route(None, None, None, keyed)),
        ("choice of shadows: none", split, lambda: shadows.chosen(primary)),
        ("signed id of the answer", split, lambda: prediction_ids.issue(primary.target_bytes, [7])),
    ):
        registry.models = {"digits": state.directed(policy)}
        times = [_us_per_call(cast("Callable[[], object]", call)) for _ in range(REPEATS)]
        worst = max(worst, statistics.median(times))
        print(f"| {name} | {statistics.median(times):.2f} ({min(times):.2f}-{max(times):.2f}) |")
    print(f"\nthe dearest takes {worst:.2f} µs, allowed are {TARGET_US:g} µs")
    return int(worst > TARGET_US)


def _us_per_call(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(NUM_CALLS):
        call()
    return (time.perf_counter() - started) / NUM_CALLS * 1e6


def _served() -> tuple[Reconciler, Registry]:
    """Return a fleet with three ready versions and a registry with their state, with nothing behind them."""
    metrics = Metrics()
    limits = BatchLimits(32, 2**20, 1024, 2**20, 1000, 100)
    deployments: dict[str, ModelVersion] = {}
    records: dict[str, VersionRecord] = {}
    for version in VERSIONS:
        file = f"digits-{version}.mar"
        archive = Archive(file=file, model="digits", version=version, release=version, variant="fp32", sha256="0" * 64)
        of_version = VersionMetrics(metrics, archive.target)
        batcher = Batcher(archive.target, cast("Any", None), limits, of_version)
        deployments[version] = ModelVersion(archive, Contract.unknown("digits", version), batcher, of_version, 1)
        deployments[version].state = "ready"
        records[version] = VersionRecord(archive)
    view = ReconcilerView({"digits": deployments}, "")
    state = ModelState("digits", 1, records, Policy.all_to("1.0"), {"canary": "1.1"})
    models: Mapping[str, ModelState] = {"digits": state}
    find: Callable[[Target], ModelVersion] = lambda target: deployments[target.version]  # noqa: E731
    return cast("Reconciler", SimpleNamespace(view=view, find=find)), cast("Registry", SimpleNamespace(models=models))
