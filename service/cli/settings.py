"""The settings on the command line: a flag for each but secrets, and the list that `torchgate settings` prints."""

import argparse
import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from service.config.environment import env_name
from service.config.places.file import CONFIG_FLAG, USUAL_FILE
from service.config.places.groups import setting_groups
from service.config.places.sources import DEFAULT, Sources, flag_name
from service.config.settings import SECRETS, Settings
from service.config.variables import CONFIG_VARIABLE


def config_flag() -> argparse.ArgumentParser:
    """Return a parent of parsers that read a file of settings."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        CONFIG_FLAG,
        metavar="FILE",
        help=f"file of settings; if not given, {CONFIG_VARIABLE}, then {USUAL_FILE} in this folder",
    )
    return parser


def setting_flags() -> argparse.ArgumentParser:
    """Return a parent of the parsers that take every setting."""
    parser = argparse.ArgumentParser(add_help=False, parents=[config_flag()])
    for title, names in setting_groups().items():
        group = parser.add_argument_group(title)
        for name in names:
            if name not in SECRETS:  # other users see a command line
                group.add_argument(flag_name(name), default=argparse.SUPPRESS, metavar=_metavar(name), help=_help(name))
    return parser


def given_flags(options: argparse.Namespace) -> dict[str, str]:
    """Return the texts of the settings that were given as flags."""
    return {name: text for name, text in vars(options).items() if name in Settings.model_fields}


def refusal(unknown: Sequence[str]) -> str:
    """Return what to say of arguments that no parser knows; values are not repeated, they might be secrets."""
    name = next((each for each in unknown if each.startswith("--")), "").partition("=")[0]
    for secret in SECRETS:
        if name == flag_name(secret):
            return (
                f"{name}: there is no such flag, because other users can see a command line. Set {env_name(secret)}, "
                f"or name a file that holds it in {name}-file"
            )
    known = [flag_name(field) for field in Settings.model_fields if field not in SECRETS]
    if near := get_close_matches(name, known, n=1, cutoff=0.75):
        return f"{name}: there is no such flag. Did you mean {near[0]}?"
    names = [each.partition("=")[0] for each in unknown if each.startswith("-")]  # a value might be a secret
    return f"unrecognized arguments: {' '.join(names or unknown)}"


def settings_document(settings: Settings, sources: Sources) -> Mapping[str, Mapping[str, Any]]:
    """Return every setting by its name, for programs; a secret says only whether it is set."""
    values = settings.model_dump(mode="json", exclude=set(SECRETS))
    values |= {name: "(set)" if getattr(settings, name) else None for name in SECRETS}
    defaults = Settings.model_construct().model_dump(mode="json")
    return {
        name: {
            "value": values[name],
            "source": sources.place(name),
            "default": defaults[name],
            "variable": env_name(name),
            "flag": None if name in SECRETS else flag_name(name),
            "description": field.description,
        }
        for name, field in Settings.model_fields.items()
    }


def settings_text(settings: Settings, sources: Sources, *, is_json: bool) -> str:
    """Return the list of all settings, for people or for programs."""
    if is_json:
        return json.dumps(settings_document(settings, sources), indent=2)
    lines = []
    for name, field in Settings.model_fields.items():
        value, place = getattr(settings, name), sources.place(name)
        shown = "(set)" if name in SECRETS and value else value
        origin = place if place == DEFAULT else f"{place}; default {field.default}"
        lines.append(f"{env_name(name)}={shown}  ({origin}) {field.description}")
    return "\n".join(lines)


def _metavar(name: str) -> str:
    kind = Settings.model_fields[name].annotation
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return "true|false" if kind is bool else "VALUE"


def _help(name: str) -> str:
    field = Settings.model_fields[name]
    default = str(field.default).lower() if field.annotation is bool else field.default
    text = f"{field.description}" if default is None else f"{field.description} Default: {default}."
    return text.replace("%", "%%")
