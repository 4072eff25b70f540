"""What is measured in one go: a system is started, its cells are measured, it is stopped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Put = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Task:
    """One row of the table: system/workload, the names of its cells, and how those that are wanted are measured."""

    key: str
    cells: Sequence[str]
    run: Callable[[Sequence[str], Put], None]
