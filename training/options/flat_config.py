"""Nested documents as one level: what trackers, tables and searches want of a config."""

from collections.abc import Mapping
from typing import Any


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def differences(documents: list[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return, by dotted name, the values of those leaves that are not the same in all; None where one has none."""
    flat = [flatten(document) for document in documents]
    names = dict.fromkeys(name for each in flat for name in each)
    columns = {name: [each.get(name) for each in flat] for name in names}
    return {name: values for name, values in columns.items() if any(value != values[0] for value in values)}
