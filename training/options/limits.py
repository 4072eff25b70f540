"""What options may be, and the error that says so."""

import math
import re

from training.errors import SettingError

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")  # the gateway takes 100, with the release and the variant


def check_name(model: str) -> None:
    """Raise SettingError for a name that a model store and requests cannot have."""
    if not NAME.fullmatch(model):
        raise SettingError(
            f"the model's name is {model!r}; allowed are lower-case letters, digits, '.', '_' and '-', "
            "at most 80, the first a letter or a digit: give one with --name"
        )


def at_least(name: str, value: float, least: float) -> None:
    """Raise SettingError for an option that is less, infinite or not a number."""
    if not least <= value < math.inf:
        raise SettingError(f"--{name.replace('_', '-')} is {value}; allowed is {least} or more")


def more_than_zero(name: str, value: float) -> None:
    """Raise SettingError for an option that is not positive, infinite or not a number."""
    if not 0 < value < math.inf:
        raise SettingError(f"--{name} is {value}; allowed is more than 0")
