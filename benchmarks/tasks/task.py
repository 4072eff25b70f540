"""What is measured in one go: a system is started, its cells are measured, it is stopped."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Put = Callable[[str, dict[str, Any]], None]


class Task(Protocol):
    """One row of the table."""

    @property
    def key(self) -> str:
        """Return system/workload."""

    @property
    def cells(self) -> Sequence[str]:
        """Return the names of its cells."""

    def run(self, wanted: Sequence[str], put: Put) -> None:
        """Measure the cells that are wanted and hand each over."""
