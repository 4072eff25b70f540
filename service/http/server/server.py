"""uvicorn's server with named sockets, a stop in steps, and a way to hand its sockets over.

serving ─ SIGTERM ─> lame duck: /readyz says no; connections are still taken, each answer is its connection's last
        ─ time, or a second signal ─> drain: nobody listens, idle connections are closed, requests end
        ─ all have ended, or time, or a second SIGINT ─> the application stops

serving ─ another gateway serves on the same sockets ─> this one listens no more; each answer is its connection's
          last, and idle connections have a moment for another request ─> drain, and so on
"""

import asyncio
import contextlib
import functools
import gc
import logging
import math
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from service.config.settings import Settings
from service.http.server.connection import GatewayState
from service.http.server.listener import Listener
from service.http.server.protocol import BoundedHttpProtocol
from service.http.tls.certificates import ignore_sighup
from service.process.entrance import Entrance
from service.process.lifecycle import Lifecycle
from service.process.listening import CannotListen, ListeningSocket
from service.process.meeting_place import meeting_place
from service.process.offer import Offer
from service.process.systemd import Supervisor
from service.process.watchdog import Watchdog, flush_log

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1
# After a handover, idle connections stay open this long at least: whoever asks on one meanwhile gets an answer.
FAREWELL_SECONDS = 2.0
NOT_LISTENING = 1  # exit status
TURN_SECONDS = 3.0  # the event loop turns at least as often, for the watchdog


class GatewayServer(uvicorn.Server):
    """Answers on the sockets of `entrance` until a signal or the next gateway, then stops in steps."""

    def __init__(
        self,
        config: uvicorn.Config,
        settings: Settings,
        entrance: Entrance,
        lifecycle: Lifecycle,
        supervisor: Supervisor,
    ) -> None:
        super().__init__(config)
        self.server_state: GatewayState = GatewayState()
        self._settings = settings
        self._entrance = entrance
        self._lifecycle = lifecycle
        self._supervisor = supervisor
        self._sockets: Sequence[ListeningSocket] = ()
        self._listeners: Sequence[Listener] = ()
        self._offer: Offer | None = None
        self._while_listening = contextlib.ExitStack()
        self._is_handed_over = False
        self._is_lame_duck_over = not settings.lame_duck_seconds

    async def _serve(self, sockets: list[socket.socket] | None = None) -> None:
        turn_seconds = min(self._supervisor.watchdog_seconds / 2 or TURN_SECONDS, TURN_SECONDS)
        async with Watchdog(self._settings.watchdog_seconds, self._supervisor.lives, turn_seconds):
            await super()._serve(sockets)
        flush_log()  # uvicorn now raises the signal that stopped it again, and that one ends the process

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then take connections, and offer the sockets to the next gateway."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        try:
            self._sockets = await self._entrance.open(self._lifecycle.readiness, lambda: self.should_exit)
        except CannotListen as error:
            logger.error("%s", error)  # noqa: TRY400 - the reason says it all
            await self.lifespan.shutdown()
            sys.exit(NOT_LISTENING)
        if not self._sockets:
            await self.lifespan.shutdown()
            return
        self._listeners = [self._listen(each) for each in self._sockets]
        self.servers = list[Any](self._listeners)
        self._while_listening.enter_context(self._lifecycle.while_listening)
        for each in self._sockets:
            host, port = each.address
            place = {"scheme": "http" if self.config.ssl is None else "https", "host": host, "port": port}
            place["listener"] = each.name
            logger.info("torchgate listens on %(scheme)s://%(host)s:%(port)d (%(listener)s)", place, extra=place)
        self._offer = Offer(
            meeting_place(self._settings, self._sockets[0].address[1]), self._sockets, self._status, self._hand_over
        )
        self._offer.open()
        await self._entrance.is_used()
        self._supervisor.tell("READY=1")
        self.started = True

    async def main_loop(self) -> None:
        """Serve until the stop begins, or until another gateway serves; then say farewell to the connections."""
        await super().main_loop()
        self._retire_connections()
        self._supervisor.tell("STOPPING=1")
        if self._is_handed_over:
            seconds = max(self._settings.lame_duck_seconds, FAREWELL_SECONDS)
            self._is_lame_duck_over = False
        else:
            seconds = self._settings.lame_duck_seconds
            self._lifecycle.is_stopping = True
            if not self._is_lame_duck_over:
                logger.info("stopping: /readyz says no, and connections are taken for %g s more", seconds)
        await self._say_farewell(seconds)
        self._is_lame_duck_over = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let requests in progress end, and stop the application."""
        if self._offer is not None:
            self._offer.close()
        self._while_listening.close()
        for each in self._listeners:
            each.end_handshakes()
        await super().shutdown([each.socket for each in self._sockets])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second signal ends the lame duck, and a second Ctrl-C after that the drain."""
        if self.should_exit and not self._is_lame_duck_over:
            self._is_lame_duck_over = True
            self._captured_signals.append(sig)
        else:
            super().handle_exit(sig, frame)

    def _listen(self, at: ListeningSocket) -> Listener:
        return Listener(at.socket, at.name, self.config.ssl, self.config.loaded_app, self._protocol_of(at.name))

    def _protocol_of(self, listener: str) -> Callable[..., asyncio.Protocol]:
        protocol_class: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return functools.partial(
            protocol_class,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            listener=listener,
        )

    def _status(self) -> Mapping[str, Any]:
        """Return what the next gateway must know of this one."""
        return {"release": version("torchgate"), "ready": list(self._lifecycle.readiness.versions())}

    def _hand_over(self, pid: int) -> None:
        """Listen no more: the next gateway takes connections from the same sockets."""
        logger.info("process %d has taken over; this gateway listens no more, drains and ends", pid)
        for each in self._listeners:
            each.close()
        self._retire_connections()
        self._is_handed_over = True
        self.should_exit = True

    def _retire_connections(self) -> None:
        """Make the next answer of each connection, and of each new one, its last, and have it say so."""
        if self.server_state.is_retiring:
            return  # after a handover they retire already
        self.server_state.is_retiring = True
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.retire()

    async def _say_farewell(self, seconds: float) -> None:
        """Wait until connections may be closed; after a handover no longer than there are any."""
        until = asyncio.get_running_loop().time() + seconds
        num_ticks = 0
        while not self._is_lame_duck_over and asyncio.get_running_loop().time() < until:
            is_anybody_there = self.server_state.connections or any(each.num_opening for each in self._listeners)
            if self._is_handed_over and not is_anybody_there:
                return
            await asyncio.sleep(TICK_SECONDS)
            num_ticks += 1
            await self.on_tick(num_ticks)  # answers go on telling the date


def run_server(
    app: ASGIApp,
    settings: Settings,
    entrance: Entrance,
    lifecycle: Lifecycle,
    tls: ssl.SSLContext | None,
    supervisor: Supervisor,
) -> None:
    """Answer requests until a signal stops it or another gateway takes over, then finish those in progress."""
    if tls is not None:
        ignore_sighup()
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_context_factory=None if tls is None else lambda *_: tls,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds),
    )
    server = GatewayServer(config, settings, entrance, lifecycle, supervisor)
    # The imported modules stay. Without freeze, each full collection would scan them and delay requests by 0.1 s.
    gc.collect()
    gc.freeze()
    server.run()
