"""The search space: options of training, each with the values that it may take."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from training.errors import SettingError
from training.options.config import TrainConfig
from training.options.names import Option, Value, options_by_name

SYNTAX = "NAME=LOW:HIGH, NAME=log:LOW:HIGH or NAME=VALUE,VALUE,..."


@dataclass(frozen=True)
class Range:
    """All numbers from low to high, both included; `log` draws their logarithm."""

    name: str
    low: float
    high: float
    log: bool
    integer: bool


@dataclass(frozen=True)
class Categorical:
    """One of some values."""

    name: str
    values: tuple[Value, ...]


Dimension = Range | Categorical


def parse_space(texts: Sequence[str], config: TrainConfig) -> list[Dimension]:
    """Return the dimensions that the texts declare.

    Raises SettingError for a text that is none, and for a value that the config would refuse in every trial.
    """
    if not texts:
        raise SettingError(f"--space is missing; give it once for each option to search, as {SYNTAX}")
    options = options_by_name(TrainConfig)
    dimensions: list[Dimension] = []
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values:
            raise SettingError(f"--space is {text!r}; allowed is {SYNTAX}")
        if name not in options:
            raise SettingError(f"--space names {name!r}; allowed is one of {', '.join(sorted(options))}")
        if any(each.name == name for each in dimensions):
            raise SettingError(f"--space names {name} twice")
        dimensions.append(_parse(text, name, values, options[name]))
    for dimension in dimensions:
        others = [{each.name: value} for each in dimensions if each is not dimension for value in _ends(each)]
        for value in _ends(dimension):
            _check(config, dimension.name, value, others)
    return dimensions


def apply(config: TrainConfig, values: Mapping[str, Value]) -> TrainConfig:
    """Return the config with these options changed; raises SettingError for values that it refuses.

    All of them change at once: one may be allowed with another's value alone.
    """
    options = options_by_name(TrainConfig)
    changed: TrainConfig = _replaced(config, {options[name].path: value for name, value in values.items()})
    return changed


def _parse(text: str, name: str, values: str, option: Option) -> Dimension:
    if ":" not in values:
        chosen = tuple(_value(text, each, option) for each in values.split(","))
        if len(set(chosen)) < len(chosen):
            raise SettingError(f"--space is {text!r}: a value is named twice")
        return Categorical(name, chosen)
    if option.kind not in (int, float) or option.allowed:
        raise SettingError(f"--space is {text!r}; {name} has no range, allowed is {name}=VALUE,VALUE,...")
    log = values.startswith("log:")
    ends = [_value(text, each, option) for each in values.removeprefix("log:").split(":")]
    if len(ends) != 2:
        raise SettingError(f"--space is {text!r}; allowed is {SYNTAX}")
    low, high = (float(end) for end in ends)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SettingError(f"--space is {text!r}; allowed is a LOW that is less than HIGH")
    if log and low <= 0:
        raise SettingError(f"--space is {text!r}; allowed for log is a LOW of more than 0")
    return Range(name, low, high, log, integer=option.kind is int)


def _value(text: str, word: str, option: Option) -> Value:
    word = word.strip()
    if option.allowed and word not in option.allowed:
        raise SettingError(f"--space is {text!r}: {word!r} is not one of {', '.join(option.allowed)}")
    if option.kind is bool:
        if word not in ("true", "false"):
            raise SettingError(f"--space is {text!r}: {word!r} is neither true nor false")
        return word == "true"
    try:
        value: Value = option.kind(word)
    except ValueError as error:
        kind = "a whole number" if option.kind is int else "a number"
        raise SettingError(f"--space is {text!r}: {word!r} is not {kind}") from error
    return value


def _ends(dimension: Dimension) -> tuple[Value, ...]:
    return dimension.values if isinstance(dimension, Categorical) else (dimension.low, dimension.high)


def _check(config: TrainConfig, name: str, value: Value, others: list[dict[str, Value]]) -> None:
    """Raise SettingError for a value that the config refuses alone, and with each value of another option, too."""
    try:
        apply(config, {name: value})
    except SettingError:
        for other in others:
            with suppress(SettingError):
                apply(config, {name: value} | other)
                return
        raise


def _replaced(config: Any, values: Mapping[tuple[str, ...], Value]) -> Any:
    changes: dict[str, Any] = {path[0]: value for path, value in values.items() if len(path) == 1}
    for name in {path[0] for path in values if len(path) > 1}:
        inner = {path[1:]: value for path, value in values.items() if path[0] == name}
        changes[name] = _replaced(getattr(config, name), inner)
    return replace(config, **changes)
