"""`python -m benchmarks bench` and `tune`; the Makefile's verbs of the same names run them."""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import matrix, report, seeds
from benchmarks.places import PUBLISHED, WORK
from benchmarks.plan import MODES, Mode, tasks
from benchmarks.results import Results, configuration
from benchmarks.targets import all_met, lines
from benchmarks.training import modes
from benchmarks.workloads import Name, Unavailable, Workload, prepare
from service.backends.embedded.allocator import find_allocator

ACCURACY = "accuracy.json"


def main() -> None:
    """Run what the command line asks for; `bench` ends with status 1 where a target is missed."""
    options = _parser().parse_args()
    if options.verb in NEED_WRK and shutil.which("wrk") is None:
        sys.exit("wrk is missing: `make system-packages` installs it (Debian's package wrk)")
    if options.verb in NEED_ALLOCATOR and find_allocator() is None:
        sys.exit("tcmalloc is missing: `make system-packages` installs it (Debian's package libtcmalloc-minimal4)")
    sys.exit(VERBS[options.verb](options))


def _bench(options: argparse.Namespace) -> int:
    return run_bench(MODES[options.mode], options.only, fresh=options.fresh, publish=options.publish)


def _shadow(options: argparse.Namespace) -> None:
    from benchmarks.shadowing import run_shadow  # noqa: PLC0415

    run_shadow(options.store)


def _training(options: argparse.Namespace) -> None:
    from benchmarks.training.report import run_training  # noqa: PLC0415

    run_training(options.mode, options.only, publish=options.publish)


def _quantized(_: argparse.Namespace) -> None:
    from benchmarks.quantized import measure_quantized  # noqa: PLC0415

    measure_quantized()


def _routing(_: argparse.Namespace) -> int:
    from benchmarks.routing import run_routing  # noqa: PLC0415

    return run_routing()


def _prediction_log(_: argparse.Namespace) -> None:
    from benchmarks.prediction_log import run_prediction_log  # noqa: PLC0415

    run_prediction_log()


def _watching(_: argparse.Namespace) -> None:
    from benchmarks.watching import run_watching  # noqa: PLC0415

    run_watching()


def _tracing(options: argparse.Namespace) -> None:
    from benchmarks.tracing import run_tracing  # noqa: PLC0415

    run_tracing(options.store)


def _peers(options: argparse.Namespace) -> None:
    from benchmarks.peer_settings import sweep  # noqa: PLC0415

    sweep(prepare("small", quick=True), options.only, options.seconds)


def _tune(options: argparse.Namespace) -> None:
    from benchmarks.tune import run_tune  # noqa: PLC0415

    run_tune(options.store, options.backend, options.clients, options.seconds)


VERBS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "bench": _bench,
    "peers": _peers,
    "prediction-log": _prediction_log,
    "quantized": _quantized,
    "routing": _routing,
    "shadow": _shadow,
    "tracing": _tracing,
    "training": _training,
    "tune": _tune,
    "watching": _watching,
}
NEED_ALLOCATOR = ("bench", "peers")  # what is published is with one
NEED_WRK = ("bench", "peers", "tracing", "tune")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    bench = verbs.add_parser("bench", help="measure torchgate and its peers, and hold the targets against the figures")
    bench.add_argument("--mode", choices=MODES, default="default")
    bench.add_argument("--only", default="", help="cells to measure again: system/workload/clients, with wildcards")
    bench.add_argument("--fresh", action="store_true", help="forget what was measured of this configuration")
    bench.add_argument("--publish", action="store_true", help="copy the tables and the plot to where the README shows")
    tuner = verbs.add_parser("tune", help="find the best settings for the archives of a model store on this machine")
    tuner.add_argument("--store", type=Path, required=True)
    tuner.add_argument("--backend", default="", help="grpc, rest or workers; the gateway's default if not given")
    tuner.add_argument("--clients", type=int, default=64)
    tuner.add_argument("--seconds", type=float, default=4)
    shadow = verbs.add_parser("shadow", help="measure what a shadow costs the version that answers")
    shadow.add_argument("--store", type=Path, default=Path("model_store"))
    tracing = verbs.add_parser("tracing", help="measure what tracing costs a request")
    tracing.add_argument("--store", type=Path, default=Path("model_store"))
    trainer = verbs.add_parser(
        "training", help="measure the tables of the design documents: operators, forms, strategies"
    )
    trainer.add_argument("--mode", choices=modes.MODES, default="default")
    trainer.add_argument(
        "--only", choices=("", *modes.TABLES), default="", help="measure one table again, keep the others"
    )
    trainer.add_argument("--publish", action="store_true", help="copy tables and plots to where the README shows them")
    verbs.add_parser("quantized", help="what int8 costs in accuracy, over several seeds")
    verbs.add_parser("routing", help="measure what routing costs a request")
    verbs.add_parser("prediction-log", help="measure what the prediction log costs a request")
    verbs.add_parser("watching", help="measure what it costs to look at answers: classes, confidence, drift")
    peers = verbs.add_parser("peers", help="sweep the peers' settings, to run each at its best")
    peers.add_argument("--only", default="", help="start of a line, such as mosec")
    peers.add_argument("--seconds", type=float, default=3)
    return parser


def run_bench(mode: Mode, only: str, *, fresh: bool, publish: bool) -> int:
    """Measure what is missing, show everything, and return the exit status."""
    started = time.monotonic()
    workloads, missing = build(mode)
    results = Results(WORK / "runs" / configuration(mode.name, [each.archive for each in workloads.values()]))
    if fresh:
        shutil.rmtree(results.folder, ignore_errors=True)
    results.failures |= missing
    accuracy = measure_accuracy(mode, results, may_train=not only)
    matrix.measure(tasks(mode, workloads), mode.repeats, results, only)
    found = lines(results, accuracy)
    minutes = (time.monotonic() - started) / 60
    results.folder.mkdir(parents=True, exist_ok=True)
    print("\n" + report.write(results, found, accuracy, minutes))
    from benchmarks.plot import draw  # noqa: PLC0415 - matplotlib takes a while to import

    for workload in ("small", "big"):
        if draw(results, results.folder / f"{workload}.png", workload):
            print(f"plot: {results.folder / workload}.png")
    print(f"tables and JSON: {results.folder}, {minutes:.1f} min")
    if publish:
        PUBLISHED.mkdir(exist_ok=True)
        for path in (*results.folder.glob("*.png"), results.folder / "results.md"):
            shutil.copy(path, PUBLISHED / path.name)
        print(f"published: {PUBLISHED}")
    short = [line for line in found if not line.is_met]
    print(f"{len(short)} of {len(found)} lines fall short" if short else "every line is met")
    return 0 if all_met(found) else 1


def build(mode: Mode) -> tuple[dict[str, Workload], dict[str, str]]:
    """Return the workloads, and why others are missing."""
    workloads: dict[str, Workload] = {}
    missing: dict[str, str] = {}
    names: list[Name] = ["small", "small-int8"]
    if mode.big_systems:
        names.append("big")
    for name in names:
        try:
            workloads[name] = prepare(name, quick=mode.name == "quick")
        except Unavailable as reason:
            missing[f"*/{name}"] = str(reason)
    return workloads, missing


def measure_accuracy(mode: Mode, results: Results, *, may_train: bool) -> dict[str, Any] | None:
    """Return what static quantization costs, or None where it is not measured."""
    if not mode.seeds:
        return None
    path = results.folder / ACCURACY
    if not path.exists() and not may_train:
        return None
    if not path.exists():
        try:
            found = seeds.static_against_fp32()
        except Unavailable as reason:
            results.failures["accuracy"] = str(reason)
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    document: dict[str, Any] = json.loads(path.read_text())
    return document


if __name__ == "__main__":
    main()
