"""The command line: options come from the frozen dataclasses, their defaults from a preset or from the run."""

import argparse
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import tyro

from training.archive import archive, check_archive
from training.artifacts import Run, read_json, write_json
from training.config import (
    ArchiveConfig,
    Config,
    ProfileConfig,
    config_from,
)
from training.data.prepare import prepare
from training.errors import RunError, SettingError
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
from training.presets import build_config
from training.profile import profile
from training.quantize import quantize
from training.train import train

Options = TypeVar("Options")


def run_prepare(args: Sequence[str], _: ArchiveConfig) -> None:
    """Prepare a new run."""
    config = _preset(args)
    options = _parse("prepare", PrepareOptions(config.preset, config.name, config.data), args)
    run = _prepare(options.runs, replace(config, name=options.name, data=options.data))
    print(f"run: {run.folder}")


def run_train(args: Sequence[str], _: ArchiveConfig) -> None:
    """Train a prepared run."""
    config = _recorded(args)
    options = _parse("train", TrainOptions(_run_folder(args), config.train), args)
    run = Run(options.run)
    write_json(run.config, replace(config, train=options.train))
    train(run, options.train)


def run_evaluate(args: Sequence[str], _: ArchiveConfig) -> None:
    """Evaluate a trained run, or a prediction log."""
    options = _parse("evaluate", EvaluateOptions(), args)
    if (options.run is None) == (options.log is None):
        raise SettingError("evaluate takes either --run or --log")
    if options.run is not None:
        if options.report or options.images or options.name:
            raise SettingError("--report, --images and --name go with --log")
        evaluate(Run(_run_folder(args)))
    if options.log is not None:
        _evaluate_log(options.log, options)


def run_quantize(args: Sequence[str], _: ArchiveConfig) -> None:
    """Quantize a trained run."""
    quantize(Run(_parse("quantize", RunOptions(_run_folder(args)), args).run))


def run_export(args: Sequence[str], _: ArchiveConfig) -> None:
    """Export a run that was evaluated and quantized."""
    config = _recorded(args)
    options = _parse("export", ExportOptions(_run_folder(args), config.export), args)
    run = Run(options.run)
    write_json(run.config, replace(config, export=options.export))
    export(run, options.export)


def run_archive(args: Sequence[str], archives: ArchiveConfig) -> None:
    """Archive an exported run."""
    options = _parse("archive", ArchiveOptions(_run_folder(args), _recorded(args).name, archives), args)
    archive(Run(options.run), options.name, options.archive)


def run_profile(args: Sequence[str], archives: ArchiveConfig) -> None:
    """Profile an exported run or an archive."""
    options = _parse("profile", ProfileConfig(), args)
    _new_folder(options.runs, "profile", lambda folder: profile(folder, options, archives.handler))


def run_pipeline(args: Sequence[str], archives: ArchiveConfig) -> None:
    """Do it all."""
    options = _parse("pipeline", PipelineOptions(_preset(args), archives), args)
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


STAGES: dict[str, Callable[[Sequence[str], ArchiveConfig], None]] = {
    "prepare": run_prepare,
    "train": run_train,
    "evaluate": run_evaluate,
    "quantize": run_quantize,
    "export": run_export,
    "archive": run_archive,
    "pipeline": run_pipeline,
    "profile": run_profile,
}

USAGE = """usage: python -m training STAGE [options]

stages, in their order:
  prepare    decode images into the arrays of a new run
  train      find the weights
  evaluate   measure them on the test images; with --log, what a gateway has answered
  quantize   make the int8 variants and measure them
  export     make TorchScript graphs of all variants
  archive    put all into the model store
  pipeline   all of these in a row

  profile    where the time of a run's graph, or of an archive's, goes

python -m training STAGE --help explains the options of a stage."""


def dispatch(args: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the stage that the arguments name; raises TrainingError for what its caller can mend."""
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return
    stage, *rest = args
    if stage not in STAGES:
        raise SettingError(f"there is no stage {stage!r}; allowed is one of {', '.join(STAGES)}")
    store, key_file = (environment.get(f"TORCHGATE_{name}") for name in ("MODEL_STORE", "MANIFEST_KEY_FILE"))
    where = ArchiveConfig(manifest_key_file=Path(key_file) if key_file else None)
    STAGES[stage](rest, replace(where, model_store=Path(store)) if store else where)


def _parse(stage: str, default: Options, args: Sequence[str]) -> Options:
    """Return the options that the arguments make of the defaults; tyro prints what is wrong and exits with 2."""
    return tyro.cli(
        type(default),
        default=default,
        args=args,
        prog=f"python -m training {stage}",
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
    )


def _peek(args: Sequence[str], option: str) -> str | None:
    """Return one option's value ahead of the others: their defaults depend on it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(option)
    try:
        known, _ = parser.parse_known_args(list(args))
    except argparse.ArgumentError as error:
        raise SettingError(f"{option}: {error.message}") from error
    value: str | None = vars(known)[option.lstrip("-")]
    return value


def _preset(args: Sequence[str]) -> Config:
    return build_config(_peek(args, "--preset"), _peek(args, "--data"))


def _run_folder(args: Sequence[str]) -> Path:
    folder = _peek(args, "--run")
    if folder is None:
        return tyro.MISSING  # type: ignore[no-any-return]
    if not Path(folder).is_dir():
        raise RunError(f"--run: {folder} is not a folder; `python -m training prepare` makes one")
    return Path(folder)


def _recorded(args: Sequence[str]) -> Config:
    folder = _run_folder(args)
    if folder is tyro.MISSING:
        return build_config("digits", None)
    return config_from(read_json(Run(folder).config, written_by="prepare"))


def _prepare(runs: Path, config: Config) -> Run:
    def fill(folder: Path) -> None:
        write_json(Run(folder).config, config)
        prepare(Run(folder), config.data)

    return Run(_new_folder(runs, config.preset, fill))


def _new_folder(runs: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """Return a new folder that `fill` has filled; half of what it should hold is of no use to anybody."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = runs / f"{stamp}-{name}-{secrets.token_hex(2)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise SettingError(f"--runs: {folder} cannot be made: {error.strerror}") from error
    try:
        fill(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    return folder
