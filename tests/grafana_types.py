"""Grafana's own types of a dashboard, from its foundation SDK, held against a document.

The SDK reads what it knows and takes values as they are. So a document fits if the SDK writes back all of it, and if
every value is of the type that the SDK gives its attribute.
"""

import enum
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

# Prometheus' own part of an annotation, which the SDK leaves to the plugin.
OF_PLUGINS = frozenset({"titleFormat"})


def misfits(document: dict[str, Any]) -> list[str]:
    """Return where a dashboard is not what Grafana's types say."""
    register_default_plugins()
    dashboard = Dashboard.from_json(document)
    written = json.loads(json.dumps(dashboard, cls=JSONEncoder))
    return [*_lost(document, written, "dashboard"), *_mistyped(dashboard, Dashboard, "dashboard")]


def _lost(given: Any, written: Any, place: str) -> Iterator[str]:
    """Yield what was read and is not written back."""
    if isinstance(given, dict) and isinstance(written, dict):
        for key in given.keys() - OF_PLUGINS:
            if key in written:
                yield from _lost(given[key], written[key], f"{place}.{key}")
            else:
                yield f"{place}.{key} is unknown"
    elif isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        for number, (one, other) in enumerate(zip(given, written, strict=True)):
            yield from _lost(one, other, f"{place}[{number}]")
    elif given != written:
        yield f"{place} is {given!r}, taken for {written!r}"


def _mistyped(value: Any, hint: Any, place: str) -> Iterator[str]:
    """Yield what is not of its type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        # A plugin's part: its type is known where the SDK has read it as an object of its own.
        if hasattr(value, "to_json"):
            yield from _mistyped(value, type(value), place)
    elif origin in {typing.Union, types.UnionType}:
        tried = [list(_mistyped(value, each, place)) for each in arguments]
        yield from max(tried, key=_depth) if all(tried) else ()
    elif origin is list and isinstance(value, list):
        for number, each in enumerate(value):
            yield from _mistyped(each, arguments[0], f"{place}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, each in value.items():
            yield from _mistyped(each, arguments[1], f"{place}.{key}")
    elif isinstance(value, dict) and hasattr(hint, "from_json"):  # some parts the SDK leaves unread
        yield from _mistyped(hint.from_json(value), hint, place)
    elif not _is_one(value, origin or hint, arguments):
        yield f"{place} is {value!r}, not {hint}"
    elif hasattr(value, "to_json"):
        for name, of_attribute in typing.get_type_hints(type(value)).items():
            yield from _mistyped(getattr(value, name), of_attribute, f"{place}.{name}")


def _depth(found: list[str]) -> int:
    """Return how far into the document a complaint is: of a union, the type that was meant fits furthest."""
    return max(len(each.partition(" is ")[0]) for each in found)


def _is_one(value: Any, hint: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether a value without parts, or an object as a whole, is of a type."""
    if hint is typing.Literal:
        return value in arguments
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in [each.value for each in hint]
    if hint in {int, float}:
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return isinstance(value, hint)
