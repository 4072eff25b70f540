"""What the server and the application tell each other."""

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, Self

from service.errors.gateway import NotReady
from service.errors.reason import Reason, open_reason


class Readiness(Protocol):
    """What the application can answer now."""

    @property
    def waiting_for(self) -> Reason:
        """Return why a version is not ready; its texts are empty when all are."""

    def require(self) -> None:
        """Raise NotReady unless the default models answer."""

    def versions(self) -> Collection[str]:
        """Return the versions that answer."""


class NotStarted:
    """The readiness of an application that has not said anything yet."""

    waiting_for = open_reason("the gateway is starting")

    def require(self) -> None:
        """Raise NotReady."""
        raise NotReady(self.waiting_for)

    def versions(self) -> Collection[str]:
        """Return nothing."""
        return ()


class Lifecycle:
    """One gateway's life, shared by its server and its application."""

    def __init__(self) -> None:
        self.is_stopping = False  # /readyz says no, so that load balancers send their requests elsewhere
        self.readiness: Readiness = NotStarted()
        self.while_listening: AbstractContextManager[None] = nullcontext()  # entered by the server

    def tell(self, readiness: Readiness) -> Self:
        """Take what tells the application's readiness; return self."""
        self.readiness = readiness
        return self
