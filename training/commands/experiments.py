"""Many runs: the search for good options, and runs side by side."""

from collections.abc import Sequence
from pathlib import Path

from training.artifacts import Run, Sweep, Variant
from training.commands.arguments import new_folder, parse, peek, preset
from training.commands.flags import MISSING
from training.data.sources.open_source import is_streamed
from training.errors import SettingError
from training.evaluation.evaluate import evaluate, is_evaluated
from training.int8.quantize import QUANTIZED, quantize
from training.options.config import ArchiveConfig, QuantizeConfig
from training.options.execution import check_train
from training.options.verbs import CompareOptions, SweepOptions
from training.tracking.compare_runs import compare_runs
from training.tracking.record import refresh


def run_sweep(args: Sequence[str], _: ArchiveConfig) -> None:
    """Begin a sweep, or go on with it."""
    # Optuna is of use to this verb alone.
    from training.sweep.sweep import sweep  # noqa: PLC0415

    options = parse("sweep", SweepOptions(MISSING, (), preset(args)), args)
    is_stream = is_streamed(options.config.data.data)
    check_train(options.config.train, options.execution.torch_device(), is_stream=is_stream)
    sweep(options)


def run_compare(args: Sequence[str], _: ArchiveConfig) -> None:
    """Compare runs."""
    options = parse("compare", CompareOptions(()), args)
    runs = [Run(folder) for folder in options.run]
    new_folder(options.runs, "comparison", lambda folder: compare_runs(folder, runs))


def with_best_run(args: Sequence[str]) -> list[str]:
    """Return the arguments with the best run of the sweep that they name as their --run."""
    folder = peek(args, "--sweep")
    if folder is None:
        return list(args)
    if peek(args, "--run") is not None:
        raise SettingError("export takes either --run or --sweep")
    from training.sweep.study import best_run  # noqa: PLC0415

    run = best_run(Sweep(Path(folder)))
    return [*args, "--run", str(run.folder)]


def measure(run: Run, config: QuantizeConfig) -> None:
    """Evaluate and quantize the run, as far as that was not done with the weights that it has now."""
    print(f"run: {run.folder}", flush=True)
    if not is_evaluated(run, "fp32"):
        evaluate(run)
    qat: tuple[Variant, ...] = ("int8-qat",) if config.qat else ()
    if not all(is_evaluated(run, variant) for variant in (*QUANTIZED, *qat)):
        quantize(run, config)
    refresh(run)
