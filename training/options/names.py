"""The options of a config by the names that they have in help: what a search space and a message may speak of."""

import types
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

Value = bool | int | float | str


@dataclass(frozen=True)
class Option:
    """Where an option lies in its config, of which kind its value is, and which words are allowed if not all."""

    path: tuple[str, ...]
    kind: type
    allowed: tuple[str, ...]


def options_by_name(kind: type) -> dict[str, Option]:
    """Return the options of this kind of config that have one number, one word or a yes or no."""
    return dict(_options(kind, ()))


def _options(kind: type, path: tuple[str, ...]) -> list[tuple[str, Option]]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for each in fields(kind):
        hint, name = hints[each.name], each.name
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            name = next((note.name for note in notes if getattr(note, "name", None)), name)
        if is_dataclass(hint):
            assert isinstance(hint, type)
            found += _options(hint, (*path, each.name))
            continue
        if get_origin(hint) in (Union, types.UnionType):
            (hint, *others) = [arm for arm in get_args(hint) if arm is not type(None)]
            if others:
                continue
        allowed = get_args(hint) if get_origin(hint) is Literal else ()
        leaf = type(allowed[0]) if allowed else hint
        if leaf in (bool, int, float, str):
            option = Option((*path, each.name), leaf, tuple(str(value) for value in allowed))
            found.append((name.replace("-", "_"), option))
    return found
