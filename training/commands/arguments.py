"""What the verbs share: options come from frozen dataclasses, their defaults from a preset or from the run."""

import argparse
import secrets
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from training.artifacts import Run, read_json
from training.commands.flags import MISSING, parse_flags
from training.errors import RunError, SettingError
from training.options.config import Config, config_from
from training.options.presets import build_config

Options = TypeVar("Options")


def parse(verb: str, default: Options, args: Sequence[str]) -> Options:
    """Return the options that the arguments make of the defaults; what is wrong is printed, and ends this with 2."""
    return parse_flags(f"python -m training {verb}", default, args)


def peek(args: Sequence[str], option: str) -> str | None:
    """Return one option's value ahead of the others: their defaults depend on it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(option)
    try:
        known, _ = parser.parse_known_args(list(args))
    except argparse.ArgumentError as error:
        raise SettingError(f"{option}: {error.message}") from error
    value: str | None = vars(known)[option.lstrip("-")]
    return value


def preset(args: Sequence[str]) -> Config:
    """Return the config of the preset that the arguments name, or of the data's own."""
    return build_config(peek(args, "--preset"), peek(args, "--data"))


def run_folder(args: Sequence[str]) -> Path:
    """Return --run's folder; MISSING where there is none. Raises RunError if it is no folder."""
    folder = peek(args, "--run")
    if folder is None:
        return MISSING  # type: ignore[no-any-return]
    if not Path(folder).is_dir():
        raise RunError(f"--run: {folder} is not a folder; `python -m training prepare` makes one")
    return Path(folder)


def recorded(args: Sequence[str]) -> Config:
    """Return the config that the run was prepared with; without --run that of the preset digits, for the help."""
    folder = run_folder(args)
    if folder is MISSING:
        return build_config("digits", None)
    return config_from(read_json(Run(folder).config, written_by="prepare"))


def new_folder(runs: Path, name: str, fill: Callable[[Path], None]) -> Path:
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
