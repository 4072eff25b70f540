"""The settings out of their three places: a flag wins over the environment, and that over the file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from service.config.environment import PREFIX
from service.config.places.file import SettingsFile
from service.config.settings import SECRETS, Settings, explain

FLAG: Literal["flag"] = "flag"
ENVIRONMENT: Literal["environment"] = "environment"
DEFAULT: Literal["default"] = "default"
VARIABLE = re.compile(rf"\b{PREFIX}([A-Z0-9_]+)\b")


def flag_name(field: str) -> str:
    """Return the flag that sets `field`."""
    return f"--{field.replace('_', '-')}"


@dataclass(frozen=True)
class Sources:
    """What was given for the settings, and in which place each was found."""

    values: Mapping[str, Any] = field(repr=False)  # secrets among them
    places: Mapping[str, str]  # the flag, the environment or the file's path; a default has none

    def settings(self) -> Settings:
        """Return the settings; raises ValueError, which names each wrong one by its place."""
        try:
            return Settings(**self.values)  # what is given here wins over what the class itself would read
        except ValidationError as error:
            raise ValueError(self.named(explain(error))) from error

    def place(self, field: str) -> str:
        """Return where a setting comes from; a secret, from where the name of its file comes."""
        names = (field, f"{field}_file") if field in SECRETS else (field,)
        return next((self.places[name] for name in names if name in self.places), DEFAULT)

    def named(self, text: str) -> str:
        """Return a message with the flag or the file's key in place of each variable that was not given itself."""
        return VARIABLE.sub(self._name, text)

    def _name(self, variable: re.Match[str]) -> str:
        field = variable[1].lower()
        place = self.places.get(field, DEFAULT)
        if place == FLAG:
            return flag_name(field)
        return variable[0] if place in {ENVIRONMENT, DEFAULT} else f"{place}:{field}"


def read_sources(flags: Mapping[str, str], file: SettingsFile) -> Sources:
    """Return what the three places hold; an empty flag asks for the default. Raises ValueError for a wrong file."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    given = {name: text or Settings.model_fields[name].default for name, text in flags.items()}
    for place, layer in ((str(file.path), file.read()), (ENVIRONMENT, EnvSettingsSource(Settings)()), (FLAG, given)):
        for name in SECRETS:  # a secret and the name of its file are one setting: the higher place gives both
            pair = {name, f"{name}_file"}
            if pair & layer.keys():
                values |= dict.fromkeys(pair)
                places = {each: there for each, there in places.items() if each not in pair}
        values |= layer
        places |= dict.fromkeys(layer, place)
    return Sources(values, places)
