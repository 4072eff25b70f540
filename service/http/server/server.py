"""uvicorn's server with named sockets and a stop in steps.

serving ─ SIGTERM ─> lame duck: /readyz says no; connections are still taken, each answer is its connection's last
        ─ time, or a second signal ─> drain: nobody listens, idle connections are closed, requests end
        ─ all have ended, or time, or a second SIGINT ─> the application stops
"""

import asyncio
import functools
import gc
import logging
import math
import socket
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from service.config.settings import Settings
from service.http.server.certificates import Certificates, NoCertificates, ignore_sighup
from service.http.server.protocol import BoundedHttpProtocol
from service.http.server.retirement import GatewayState
from service.process.lifecycle import Lifecycle
from service.process.listening import BACKLOG, ListeningSocket

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1


class GatewayServer(uvicorn.Server):
    """Answers on each of `sockets` until a signal, then stops in steps."""

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: Sequence[ListeningSocket],
        lifecycle: Lifecycle,
        lame_duck_seconds: float = 0,
    ) -> None:
        super().__init__(config)
        self.server_state: GatewayState = GatewayState()
        self._sockets = sockets
        self._lifecycle = lifecycle
        self._lame_duck_seconds = lame_duck_seconds
        self._is_lame_duck_over = not lame_duck_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then take connections."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                self._protocol_of(each.name), sock=each.socket, ssl=self.config.ssl, backlog=self.config.backlog
            )
            for each in self._sockets
        ]
        self.started = True

    async def main_loop(self) -> None:
        """Serve until the stop begins; then be a lame duck for a while."""
        await super().main_loop()
        self._lifecycle.is_stopping = True
        self._retire_connections()
        if not self._is_lame_duck_over:
            logger.info("stopping: /readyz says no, and connections are taken for %g s", self._lame_duck_seconds)
            await self._wait(self._lame_duck_seconds)
            self._is_lame_duck_over = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let requests in progress end, and stop the application."""
        await super().shutdown([each.socket for each in self._sockets])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second signal ends the lame duck, and a second Ctrl-C after that the drain."""
        if self.should_exit and not self._is_lame_duck_over:
            self._is_lame_duck_over = True
            self._captured_signals.append(sig)
        else:
            super().handle_exit(sig, frame)

    def _protocol_of(self, listener: str) -> Callable[[], asyncio.Protocol]:
        protocol_class: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return functools.partial(
            protocol_class,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            listener=listener,
        )

    def _retire_connections(self) -> None:
        """Make the next answer of each connection, and of each new one, its last, and have it say so."""
        self.server_state.is_retiring = True
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.retire()

    async def _wait(self, seconds: float) -> None:
        """Wait for the end of the lame duck."""
        until = asyncio.get_running_loop().time() + seconds
        num_ticks = 0
        while not self._is_lame_duck_over and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(TICK_SECONDS)
            num_ticks += 1
            await self.on_tick(num_ticks)  # answers go on telling the date


def run_server(
    app: ASGIApp,
    settings: Settings,
    sockets: Sequence[ListeningSocket],
    lifecycle: Lifecycle,
    certificates: Certificates | NoCertificates,
) -> None:
    """Answer requests on `sockets` until a signal stops it, then finish those in progress."""
    tls = certificates.context
    if tls is not None:
        ignore_sighup()
    for each in sockets:
        host, port = each.address
        place = {"scheme": "http" if tls is None else "https", "host": host, "port": port, "listener": each.name}
        logger.info("torchgate listens on %(scheme)s://%(host)s:%(port)d (%(listener)s)", place, extra=place)
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
        backlog=BACKLOG,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds),
    )
    server = GatewayServer(config, sockets, lifecycle, settings.lame_duck_seconds)
    # The imported modules stay. Without freeze, each full collection would scan them and delay requests by 0.1 s.
    gc.collect()
    gc.freeze()
    server.run()
