"""From images to archives: the stages of a run, one by one or all in a row."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from training.archive import archive, check_archive
from training.artifacts import Run, write_json
from training.commands.arguments import new_folder, parse, preset, recorded, run_folder
from training.config import ArchiveConfig, Config, ProfileConfig
from training.data.prepare import prepare
from training.errors import SettingError
from training.evaluate import evaluate, load_evaluation
from training.export import export
from training.options import (
    ArchiveOptions,
    EvaluateOptions,
    ExportOptions,
    PipelineOptions,
    PrepareOptions,
    RunOptions,
    TrainOptions,
)
from training.profile import profile
from training.quantize import quantize
from training.train import train


def run_prepare(args: Sequence[str], _: ArchiveConfig) -> None:
    """Prepare a new run."""
    config = preset(args)
    options = parse("prepare", PrepareOptions(config.preset, config.name, config.data), args)
    run = _prepare(options.runs, replace(config, name=options.name, data=options.data))
    print(f"run: {run.folder}")


def run_train(args: Sequence[str], _: ArchiveConfig) -> None:
    """Train a prepared run."""
    config = recorded(args)
    options = parse("train", TrainOptions(run_folder(args), config.train), args)
    run = Run(options.run)
    write_json(run.config, replace(config, train=options.train))
    train(run, options.train)


def run_evaluate(args: Sequence[str], _: ArchiveConfig) -> None:
    """Evaluate a trained run, or a prediction log."""
    options = parse("evaluate", EvaluateOptions(), args)
    if (options.run is None) == (options.log is None):
        raise SettingError("evaluate takes either --run or --log")
    if options.run is not None:
        if options.report or options.images or options.name:
            raise SettingError("--report, --images and --name go with --log")
        evaluate(Run(run_folder(args)))
    elif options.name and options.images is None:
        raise SettingError("--name goes with --images")
    if options.log is not None:
        _evaluate_log(options.log, options)


def run_quantize(args: Sequence[str], _: ArchiveConfig) -> None:
    """Quantize a trained run."""
    quantize(Run(parse("quantize", RunOptions(run_folder(args)), args).run))


def run_export(args: Sequence[str], _: ArchiveConfig) -> None:
    """Export a run that was evaluated and quantized."""
    config = recorded(args)
    options = parse("export", ExportOptions(run_folder(args), config.export), args)
    run = Run(options.run)
    write_json(run.config, replace(config, export=options.export))
    export(run, options.export)


def run_archive(args: Sequence[str], archives: ArchiveConfig) -> None:
    """Archive an exported run."""
    options = parse("archive", ArchiveOptions(run_folder(args), recorded(args).name, archives), args)
    archive(Run(options.run), options.name, options.archive)


def run_profile(args: Sequence[str], archives: ArchiveConfig) -> None:
    """Profile an exported run or an archive."""
    options = parse("profile", ProfileConfig(), args)
    new_folder(options.runs, "profile", lambda folder: profile(folder, options, archives.handler))


def run_pipeline(args: Sequence[str], archives: ArchiveConfig) -> None:
    """Do it all."""
    options = parse("pipeline", PipelineOptions(preset(args), archives), args)
    config = options.config
    check_archive(config.name, options.archive)
    print(f"1/6 prepare {config.data.data}", flush=True)
    run = _prepare(options.runs, config)
    print(f"2/6 train {config.train.architecture}", flush=True)
    train(run, config.train)
    print("3/6 evaluate", flush=True)
    evaluate(run)
    print("4/6 quantize", flush=True)
    quantize(run)
    print(f"5/6 export by {config.export.compile}", flush=True)
    export(run, config.export)
    print(f"6/6 archive {config.name}", flush=True)
    entries = archive(run, config.name, options.archive)
    accuracy = load_evaluation(run, "fp32").report.accuracy
    print(
        f"{config.name} {entries[0].release}: accuracy {accuracy:.2%} on the test images; "
        f"archives in {options.archive.model_store}, everything else in {run.folder}"
    )


def _prepare(runs: Path, config: Config) -> Run:
    def fill(folder: Path) -> None:
        write_json(Run(folder).config, config)
        prepare(Run(folder), config.data)

    return Run(new_folder(runs, config.preset, fill))


def _evaluate_log(log: Path, options: EvaluateOptions) -> None:
    # The other stages need not wait for pyarrow.
    from training.log_images import collect_images  # noqa: PLC0415
    from training.log_report import as_text, log_report  # noqa: PLC0415

    reports = log_report(log)
    print(as_text(reports))
    if options.report is not None:
        write_json(options.report, {"versions": [asdict(each) for each in reports]})
    if options.images is not None:
        collected = collect_images(log, options.images, options.name)
        counts = ", ".join(f"{name} {number}" for name, number in collected.num_images.items())
        print(f"\nimages in {options.images}: {counts}")
        print(f"left out: {collected.num_contradictory} with several labels, {collected.num_unusable} unusable")
