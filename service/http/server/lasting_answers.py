"""What long answers, such as event streams, find in the scope of their ASGI request."""

from collections.abc import Callable
from typing import Any

WHEN_GONE = "torchgate.when_gone"  # sets the function to call when the client leaves
WHEN_STOPPING = "torchgate.when_stopping"  # sets the function to call when the server begins to stop
HANG_UP = "torchgate.hang_up"  # ends the connection at once, even if data is still to be sent


class Listeners:
    """Whom a connection tells that the client has left, or that the server begins to stop."""

    __slots__ = ("when_gone", "when_stopping")

    def __init__(self) -> None:
        self.when_gone: Callable[[], None] | None = None
        self.when_stopping: Callable[[], None] | None = None

    def extensions(self, hang_up: Callable[[], None]) -> dict[str, Any]:
        """Return the extensions of a scope."""
        return {WHEN_GONE: self._set_when_gone, WHEN_STOPPING: self._set_when_stopping, HANG_UP: hang_up}

    def _set_when_gone(self, call: Callable[[], None] | None) -> None:
        self.when_gone = call

    def _set_when_stopping(self, call: Callable[[], None] | None) -> None:
        self.when_stopping = call
