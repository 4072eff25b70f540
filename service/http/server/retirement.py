"""How a connection ends without a surprise: its last answer says that it is the last."""

from typing import Any

from uvicorn.server import ServerState

CLOSE = (b"connection", b"close")


class GatewayState(ServerState):
    """What uvicorn's protocols share, and whether their connections retire."""

    def __init__(self) -> None:
        super().__init__()
        self.is_retiring = False


def say_close(cycle: Any) -> None:
    """Have the answer of an ASGI request, if it has not begun, end its connection and say so."""
    cycle.default_headers = [*cycle.default_headers, CLOSE]
