"""What was found about one thing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# error: the gateway, or what is started beside it, would not start. warning: it would, and not work as it should.
State = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    subject: str
    state: State
    text: str
    next_step: str = ""
    faults: Sequence[str] = ()  # of an error, as `torchgate serve` would tell them


def ok(subject: str, text: str) -> Finding:
    """Return that all is well."""
    return Finding(subject, "ok", text)


def warning(subject: str, text: str, next_step: str) -> Finding:
    """Return that something will not work as it should, and what to do."""
    return Finding(subject, "warning", text, next_step)


def error(subject: str, faults: str) -> Finding:
    """Return what keeps the gateway from starting: one line for each fault, the next step in it."""
    lines = faults.splitlines()
    return Finding(subject, "error", "1 fault" if len(lines) == 1 else f"{len(lines)} faults", faults=lines)
