"""From images to archives: the stages of a run, one by one or all in a row."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from training.archive.archive import archive, check_archive
from training.artifacts import Run, write_json
from training.commands.arguments import new_folder, parse, preset, recorded, run_folder
from training.commands.experiments import measure, with_best_run
from training.data.prepare import prepare
from training.data.sources.open_source import is_streamed
from training.engine.train import train
from training.errors import SettingError
from training.evaluation.evaluate import evaluate, load_evaluation
from training.export.export import check_export, export
from training.int8.qat import load_qat
from training.int8.quantize import quantize
from training.options.config import ArchiveConfig, Config, ProfileConfig, QuantizeConfig
from training.options.execution import check_train
from training.options.limits import check_name
from training.options.verbs import (
    ArchiveOptions,
    EvaluateOptions,
    ExportOptions,
    PipelineOptions,
    PrepareOptions,
    QuantizeOptions,
    TrackingOptions,
)
from training.profiling.profile import profile
from training.tracking.record import refresh
from training.tracking.time_left import time_left
from training.tracking.tracker import draw_validation, register_export, tracked


def run_prepare(args: Sequence[str], _: ArchiveConfig) -> None:
    """Prepare a new run."""
    config = preset(args)
    options = parse("prepare", PrepareOptions(config.preset, config.name, config.data), args)
    check_name(options.name)
    run = _prepare(options.runs, replace(config, name=options.name, data=options.data))
    print(f"run: {run.folder}")


def run_evaluate(args: Sequence[str], _: ArchiveConfig) -> None:
    """Evaluate a trained run, or a prediction log."""
    options = parse("evaluate", EvaluateOptions(), args)
    if (options.run is None) == (options.log is None):
        raise SettingError("evaluate takes either --run or --log")
    if options.run is not None:
        if options.report or options.images or options.name:
            raise SettingError("--report, --images and --name go with --log")
        run = Run(run_folder(args))
        evaluate(run)
        refresh(run)
    elif options.name and options.images is None:
        raise SettingError("--name goes with --images")
    if options.log is not None:
        _evaluate_log(options.log, options)


def run_quantize(args: Sequence[str], _: ArchiveConfig) -> None:
    """Quantize a trained run."""
    config = recorded(args)
    # Without it, the recorded options that go with it go, too.
    default = QuantizeConfig(qat=config.quantize.qat) if "--no-qat" in args else config.quantize
    options = parse("quantize", QuantizeOptions(run_folder(args), default), args)
    _quantize(Run(options.run), replace(config, quantize=options.quantize), options.track, resume=options.resume)


def run_export(args: Sequence[str], _: ArchiveConfig) -> None:
    """Export a run that was evaluated and quantized, or the best of a sweep."""
    args = with_best_run(args)
    config = recorded(args)
    options = parse("export", ExportOptions(run_folder(args), config.export), args)
    run = Run(options.run)
    if options.sweep is not None:
        measure(run, config.quantize)
    write_json(run.config, replace(config, export=options.export))
    export(run, options.export)
    refresh(run)
    register_export(run, config.name)


def run_archive(args: Sequence[str], archives: ArchiveConfig) -> None:
    """Archive an exported run."""
    options = parse("archive", ArchiveOptions(run_folder(args), recorded(args).name, archives), args)
    run = Run(options.run)
    archive(run, options.name, options.archive)
    refresh(run)


def run_profile(args: Sequence[str], archives: ArchiveConfig) -> None:
    """Profile an exported run or an archive."""
    options = parse("profile", ProfileConfig(), args)
    new_folder(options.runs, "profile", lambda folder: profile(folder, options, archives.handler))


def run_pipeline(args: Sequence[str], archives: ArchiveConfig) -> None:
    """Do it all."""
    options = parse("pipeline", PipelineOptions(preset(args), archives), args)
    config = options.config
    check_archive(config.name, options.archive)
    check_export(config.train.architecture, config.export)
    check_train(config.train, options.execution.torch_device(), is_stream=is_streamed(config.data.data))
    print(f"1/6 prepare {config.data.data}", flush=True)
    run = _prepare(options.runs, config)
    print(f"2/6 train {config.train.architecture}", flush=True)
    with tracked(run, config, options.track, time_left(config.train.epochs)) as follower:
        train(run, config.train, options.execution, follower=follower)
    print("3/6 evaluate", flush=True)
    evaluate(run)
    print("4/6 quantize", flush=True)
    _quantize(run, config, options.track)
    print(f"5/6 export by {config.export.compile}", flush=True)
    export(run, config.export)
    refresh(run)
    register_export(run, config.name)
    print(f"6/6 archive {config.name}", flush=True)
    entries = archive(run, config.name, options.archive)
    refresh(run)
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


def _quantize(run: Run, config: Config, track: TrackingOptions, *, resume: bool = False) -> None:
    def draw() -> None:
        draw_validation(run.qat.validation_confusion_matrix, run, load_qat(run))

    if config.quantize.qat:
        also = time_left(config.quantize.num_qat_epochs())
        with tracked(run.qat, config, track, also, resumed=resume, draw=draw) as follower:
            quantize(run, config.quantize, follower, resume=resume)
    else:
        quantize(run, config.quantize)
    refresh(run)


def _evaluate_log(log: Path, options: EvaluateOptions) -> None:
    # The other stages need not wait for pyarrow.
    from training.prediction_log.images import collect_images  # noqa: PLC0415
    from training.prediction_log.report import as_text, log_report  # noqa: PLC0415

    reports = log_report(log)
    print(as_text(reports))
    if options.report is not None:
        write_json(options.report, {"versions": [asdict(each) for each in reports]})
    if options.images is not None:
        collected = collect_images(log, options.images, options.name)
        counts = ", ".join(f"{name} {number}" for name, number in collected.num_images.items())
        print(f"\nimages in {options.images}: {counts}")
        print(f"left out: {collected.num_contradictory} with several labels, {collected.num_unusable} unusable")
