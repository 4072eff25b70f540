"""What an event changed, in a few words."""

from collections.abc import Mapping
from typing import Any


def differences(event: Mapping[str, Any]) -> str:
    """Return each part of the state that an event changed as `name: before -> after`."""
    before, after = event["before"] or {}, event["after"] or {}
    names = [name for name in after if name != "revision" and before.get(name) != after[name]]
    return ", ".join(f"{name}: {_short(before.get(name))} -> {_short(after[name])}" for name in names)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(
            f"{key}={part:g}" if isinstance(part, float) else f"{key}={part}" for key, part in value.items()
        )
    return str(value)
