"""`python -m benchmarks VERB`; the Makefile's verbs run `bench`, `training` and `tune`."""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.environment.machine import allocator
from benchmarks.suite.modes import MODES
from benchmarks.training import modes

COSTS = ("images", "int8-accuracy", "prediction-log", "routing", "tracing")


def main() -> None:
    """Run what the command line asks for; `bench` and `pairs` end with status 1 where a bound is missed."""
    options = _parser().parse_args()
    needs_wrk = options.verb != "training" and getattr(options, "name", "") not in ("images", "int8-accuracy")
    if needs_wrk and shutil.which("wrk") is None:
        sys.exit("wrk is missing: `make system-packages` installs it (Debian's package wrk)")
    if options.verb == "bench" and allocator() == "glibc":  # what is published is with one
        sys.exit("tcmalloc is missing: `make system-packages` installs it (Debian's package libtcmalloc-minimal4)")
    sys.exit(VERBS[options.verb](options))


def _bench(options: argparse.Namespace) -> int:
    from benchmarks.bench import run_bench  # noqa: PLC0415

    return run_bench(MODES[options.mode], options.only, fresh=options.fresh, publish=options.publish)


def _cost(options: argparse.Namespace) -> None:
    from benchmarks.costs import images, mechanisms  # noqa: PLC0415
    from benchmarks.training import int8_accuracy  # noqa: PLC0415

    if options.name == "int8-accuracy":
        int8_accuracy.measure_quantized()
    elif options.name == "images":
        images.measure_images()
    else:
        mechanisms.measure(options.name, options.store)


def _pairs(options: argparse.Namespace) -> int:
    from benchmarks.pairs.run import Plan, run_pairs  # noqa: PLC0415

    plan = Plan(options.pairs, options.pairs_per_start, options.seconds, options.warm_up_seconds)
    return run_pairs(options.against, options.only, plan)


def _training(options: argparse.Namespace) -> None:
    from benchmarks.training.report import run_training  # noqa: PLC0415

    run_training(options.mode, options.only, publish=options.publish)


def _tune(options: argparse.Namespace) -> None:
    from benchmarks.tune import run_tune  # noqa: PLC0415

    run_tune(options.store, options.backend, options.clients, options.seconds)


VERBS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "bench": _bench, "cost": _cost, "pairs": _pairs, "training": _training, "tune": _tune,
}  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    bench = verbs.add_parser("bench", help="measure torchgate and its peers, and hold the targets against the figures")
    bench.add_argument("--mode", choices=MODES, default="default")
    bench.add_argument("--only", default="", help="cells to measure again: system/workload/clients, with wildcards")
    bench.add_argument("--fresh", action="store_true", help="forget what was measured of this configuration")
    bench.add_argument("--publish", action="store_true", help="copy tables and plots to benchmarks/results")
    cost = verbs.add_parser("cost", help="measure what one mechanism costs")
    cost.add_argument("name", choices=COSTS)
    cost.add_argument("--store", type=Path, default=Path("model_store"), help="whose newest archive is served")
    pairs = verbs.add_parser("pairs", help="hold this checkout against another one, in short alternating turns")
    pairs.add_argument("--against", required=True, help="a revision of this repository, or a checkout's folder")
    pairs.add_argument("--pairs", type=int, default=10)
    pairs.add_argument("--pairs-per-start", type=int, default=2, help="before both gateways are started anew")
    pairs.add_argument("--seconds", type=float, default=4, help="of a turn; a pair has four, two for each checkout")
    pairs.add_argument("--warm-up-seconds", type=float, default=4)
    pairs.add_argument("--only", default="", help="cells: backend/workload/clients, with wildcards")
    trainer = verbs.add_parser("training", help="measure operators, forms of the network and strategies")
    trainer.add_argument("--mode", choices=modes.MODES, default="default")
    trainer.add_argument("--only", choices=("", *modes.TABLES), default="", help="one table again, keep the others")
    trainer.add_argument("--publish", action="store_true", help="copy the tables to benchmarks/results")
    tuner = verbs.add_parser("tune", help="find the best settings for the archives of a model store on this machine")
    tuner.add_argument("--store", type=Path, required=True)
    tuner.add_argument("--backend", default="", help="grpc, rest or workers; the gateway's default if not given")
    tuner.add_argument("--clients", type=int, default=64)
    tuner.add_argument("--seconds", type=float, default=4)
    return parser


if __name__ == "__main__":
    main()
