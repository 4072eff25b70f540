"""A command line made from a frozen dataclass of options: each option is a flag, each nested dataclass a group."""

import argparse
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import reduce
from typing import Any, TypeVar

from training.options.names import Option, options_of

Options = TypeVar("Options")
MISSING: Any = object()
"""The default of an option that must be given."""


def parse_flags(prog: str, default: Options, args: Sequence[str]) -> Options:
    """Return the options that the arguments make of the defaults; what is wrong is printed, and ends this with 2."""
    options = list(options_of(type(default)))
    parser = _parser(prog, default, options)
    with_dashes = [re.sub(r"^--[^=]*", lambda name: name[0].replace("_", "-"), each) for each in args]
    found, unknown = parser.parse_known_intermixed_args(with_dashes)
    given = vars(found)
    if unknown:
        parser.error(_refusal(unknown, [option.flag for option in options]))
    for option in options:
        if _name(option) not in given and _value(default, option) is MISSING:
            parser.error(f"{option.flag} is missing; `{prog} --help` explains it")
    try:
        filled: Options = _filled(default, given)
    except ValueError as error:  # two options that do not go together, or a number out of its range
        parser.error(str(error))
    return filled


def _parser(prog: str, default: Any, options: Sequence[Option]) -> argparse.ArgumentParser:
    positional = [f"[{option.flag} ...]" for option in options if not option.flag.startswith("--")]
    usage = " ".join([prog, "[-h] [--OPTION VALUE ...]", *positional])
    parser = argparse.ArgumentParser(prog, usage, inspect.getdoc(default), allow_abbrev=False)
    groups: dict[tuple[str, ...], Any] = {(): parser}
    for option in options:
        path = option.path[:-1]
        if path not in groups:
            described = inspect.getdoc(reduce(getattr, path, default))
            groups[path] = parser.add_argument_group(path[-1], described)
        kept: dict[str, Any] = {"help": _help(option, _value(default, option)), "default": argparse.SUPPRESS}
        if not option.flag.startswith("--"):
            groups[path].add_argument(_name(option), nargs="*", metavar=option.flag, type=_converter(option), **kept)
        elif option.kind is bool:
            groups[path].add_argument(option.flag, dest=_name(option), action=argparse.BooleanOptionalAction, **kept)
        else:
            kept |= {"dest": _name(option), "metavar": _metavar(option), "type": _converter(option)}
            many = {"action": "append"} if option.is_repeated else {"nargs": "*"} if option.is_tuple else {}
            groups[path].add_argument(option.flag, **kept, **many)
    return parser


def _name(option: Option) -> str:
    return ".".join(option.path)


def _value(default: object, option: Option) -> Any:
    return reduce(getattr, option.path, default)


def _metavar(option: Option) -> str:
    names = option.allowed or ("TEXT" if option.kind is str else option.kind.__name__.upper(),)
    return "|".join((*names, "None") if option.may_be_none else names)


def _help(option: Option, default: Any) -> str:
    match default:
        case bool():
            shown = "on" if default else "off"
        case tuple():
            shown = " ".join(map(str, default)) or "none"
        case _:
            shown = str(default)
    note = "Required." if default is MISSING else f"Default: {shown}."
    return (option.help if default is None else f"{option.help} {note}").replace("%", "%%")


def _converter(option: Option) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        if option.may_be_none and text == "None":
            return None
        if option.allowed and text not in option.allowed:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(option.allowed)}")
        return option.kind(text)

    nouns: dict[type, str] = {int: "whole number", float: "number"}
    convert.__name__ = nouns.get(option.kind, option.kind.__name__)  # argparse says it
    return convert


def _refusal(unknown: Sequence[str], flags: Sequence[str]) -> str:
    name = next((each for each in unknown if each.startswith("--")), "").partition("=")[0]
    if near := get_close_matches(name, flags, n=1, cutoff=0.7):
        return f"{name}: there is no such option. Did you mean {near[0]}?"
    return f"unrecognized arguments: {' '.join(unknown)}"


def _filled(default: Any, given: Mapping[str, Any], path: str = "") -> Any:
    changes: dict[str, Any] = {}
    for each in fields(default):
        value, name = getattr(default, each.name), path + each.name
        if is_dataclass(value):
            changes[each.name] = _filled(value, given, f"{name}.")
        elif name in given:
            changes[each.name] = tuple(given[name]) if isinstance(given[name], list) else given[name]
    return replace(default, **changes)
