"""Where the gateway's listening sockets come from: they are its own from the start, or an old gateway's until then."""

import asyncio
import logging
import time
from collections.abc import Callable, MutableMapping, Sequence
from typing import Protocol

from service.config.settings import Settings
from service.errors.gateway import NotReady
from service.process.lifecycle import Readiness
from service.process.listening import PUBLIC, CannotListen, ListeningSocket, addresses, open_sockets
from service.process.meeting_place import meeting_place
from service.process.old_gateway import HandoverFailed, OldGateway, OldGatewayGone, Status
from service.process.systemd import inherited_sockets

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
BIND_SECONDS = 5.0  # in which an old gateway that stops gives up its port


class Entrance(Protocol):
    """Gives the server its sockets."""

    is_taking_over: bool  # from a running gateway

    @property
    def ports(self) -> Sequence[int]:
        """Return the ports of the sockets."""

    async def open(self, readiness: Readiness, is_stopping: Callable[[], bool]) -> Sequence[ListeningSocket]:
        """Return the sockets to listen on; nothing if the gateway stops before. Raises CannotListen."""

    async def is_used(self) -> None:
        """Note that the server listens."""

    def close(self) -> None:
        """Close what is left."""


class OwnSockets:
    """Sockets that are there already."""

    is_taking_over = False

    def __init__(self, sockets: Sequence[ListeningSocket]) -> None:
        self._sockets = sockets

    @property
    def ports(self) -> Sequence[int]:
        """Return the ports of the sockets."""
        return [each.address[1] for each in self._sockets]

    async def open(self, readiness: Readiness, is_stopping: Callable[[], bool]) -> Sequence[ListeningSocket]:
        """Return them at once: the gateway listens while its versions load."""
        del readiness, is_stopping
        return self._sockets

    async def is_used(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close them."""
        for each in self._sockets:
            each.socket.close()


class TakeOver:
    """The sockets of `old`, once this gateway can answer whatever that one can."""

    is_taking_over = True

    def __init__(self, old: OldGateway, settings: Settings) -> None:
        self._old = old
        self._settings = settings
        self._limit_seconds = 2 * settings.load_timeout_seconds

    @property
    def ports(self) -> Sequence[int]:
        """Return the ports of the settings, which are the old gateway's."""
        return [each.port for each in addresses(self._settings)]

    async def open(self, readiness: Readiness, is_stopping: Callable[[], bool]) -> Sequence[ListeningSocket]:
        """Return the sockets, on which both gateways take connections until `is_used`."""
        deadline = time.monotonic() + self._limit_seconds
        try:
            while missing := missing_of(readiness, status := await asyncio.to_thread(self._old.status)):
                if is_stopping():
                    return ()
                if time.monotonic() > deadline:
                    raise CannotListen(
                        f"not ready after {self._limit_seconds:g} s: {missing}. The running gateway (process "
                        f"{status.pid}) goes on. Fix this, then start again with --take-over"
                    )
                await asyncio.sleep(LOOK_SECONDS)  # a poll: the other process announces nothing
            logger.info("taking over from process %d, torchgate %s", status.pid, status.release)
            return open_sockets(self._settings, await asyncio.to_thread(self._old.take))
        except OldGatewayGone as error:
            logger.warning("%s; this one opens its port itself", error)
            return await self._bind()
        except HandoverFailed as error:
            raise CannotListen(f"cannot take over: {error}") from error

    async def is_used(self) -> None:
        """Have the old gateway drain and exit."""
        try:
            await asyncio.to_thread(self._old.relieve)
        except HandoverFailed as error:
            logger.warning("%s", error)
        self._old.close()

    def close(self) -> None:
        """Part from the old gateway; if it was not relieved, it goes on."""
        self._old.close()

    async def _bind(self) -> Sequence[ListeningSocket]:
        deadline = time.monotonic() + BIND_SECONDS
        while True:
            try:
                return open_sockets(self._settings)
            except CannotListen:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(LOOK_SECONDS)


def missing_of(readiness: Readiness, old: Status) -> str:
    """Return what this gateway cannot answer yet, but the old one can; empty if there is nothing."""
    try:
        readiness.require()
    except NotReady as error:
        return str(error).rstrip(".")
    missing = sorted(old.ready - frozenset(readiness.versions()))
    return f"{', '.join(missing)} not ready here, but in the running gateway" if missing else ""


def open_entrance(
    settings: Settings, environ: MutableMapping[str, str], *, is_taking_over: bool
) -> tuple[Settings, Entrance]:
    """Return where the sockets come from, and the settings with the address that they have. Raises CannotListen.

    The first of these that there is: the running gateway's (if asked for), systemd's, new ones.
    """
    given = inherited_sockets(environ, [each.name for each in addresses(settings)])
    for each in given:  # what the settings say of an address must be true: access depends on it
        names = ("host", "port") if each.name == PUBLIC else ("admin_host", "admin_port")
        settings = settings.model_copy(update=dict(zip(names, each.address, strict=True)))
    if is_taking_over:
        if not settings.port:
            raise CannotListen("--take-over needs the running gateway's port: set TORCHGATE_PORT to it, not to 0")
        if (old := _running(settings)) is not None:
            OwnSockets(given).close()
            return settings, TakeOver(old, settings)
    try:
        return settings, OwnSockets(open_sockets(settings, given))
    except CannotListen as error:
        if not is_taking_over and _is_offered(settings):
            raise CannotListen(f"{error}. A gateway runs there; `torchgate serve --take-over` replaces it") from error
        raise


def _running(settings: Settings) -> OldGateway | None:
    try:
        return OldGateway.find(meeting_place(settings, settings.port))
    except HandoverFailed as error:
        raise CannotListen(f"cannot take over: {error}") from error


def _is_offered(settings: Settings) -> bool:
    try:
        old = _running(settings)
    except CannotListen:
        return False
    if old is not None:
        old.close()
    return old is not None
