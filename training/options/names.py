"""The options of a config by the names that they have in help: what flags, a search space and a message speak of.

A field of an options class is an option, the string below it its help. Its metadata may say more: `flag` is another
name, without dashes for an argument that has none; `repeated` is for an option that is given once for each value.
"""

import ast
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Value = bool | int | float | str


@dataclass(frozen=True)
class Option:
    """Where an option lies in its config, of which kind its value is, and which words are allowed if not all."""

    path: tuple[str, ...]
    flag: str
    kind: type
    allowed: tuple[str, ...]
    may_be_none: bool
    is_tuple: bool
    is_repeated: bool
    help: str


def options_by_name(kind: type) -> dict[str, Option]:
    """Return the options of this kind of config that have one number, one word or a yes or no."""
    simple = (each for each in options_of(kind) if each.kind in (bool, int, float, str) and not each.is_tuple)
    return {each.flag.removeprefix("--").replace("-", "_"): each for each in simple}


def options_of(kind: Any, path: tuple[str, ...] = ()) -> Iterator[Option]:
    """Give the options of this kind of config, those of nested ones at their places."""
    hints, texts = get_type_hints(kind), _docstrings(kind)
    for each in fields(kind):
        hint, here = hints[each.name], (*path, each.name)
        if is_dataclass(hint):
            yield from options_of(hint, here)
            continue
        may_be_none, is_tuple = get_origin(hint) in (Union, types.UnionType), get_origin(hint) is tuple
        value = next(arm for arm in get_args(hint) if arm is not type(None)) if may_be_none or is_tuple else hint
        allowed = get_args(value) if get_origin(value) is Literal else ()
        yield Option(
            path=here,
            flag=each.metadata.get("flag", "--" + each.name.replace("_", "-")),
            kind=type(allowed[0]) if allowed else value,
            allowed=tuple(map(str, allowed)),
            may_be_none=may_be_none,
            is_tuple=is_tuple,
            is_repeated=each.metadata.get("repeated", False),
            help=texts.get(each.name, ""),
        )


def _docstrings(kind: type) -> dict[str, str]:
    """Return the strings below the fields of a class, by their names: Python itself does not keep them."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    return {
        ast.unparse(field.target): " ".join(str(text.value.value).split())
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }
