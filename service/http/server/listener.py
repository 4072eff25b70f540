"""Takes connections, opens a few in each turn of the event loop, and counts those of TLS during their handshake.

To take one is quick, to open it is not. So all are taken soon, and addresses have turns in which theirs are opened: one
client with thousands of new connections keeps nobody else waiting. The event loop's own server opens them in the order
in which they came, for as long as there are any. It tells nobody of one before the end of its handshake, and lets that
take a minute.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

from service.admin.addresses import network_of
from service.http.direct_request import DirectApplication
from service.http.server.turns import Turns
from service.http.tls.handshakes import Handshakes

logger = logging.getLogger(__name__)

MOST_TAKEN = 512  # connections, before others have their turn
MOST_OPENED = 16  # likewise
BREATH_SECONDS = 0.004  # until the next ones are opened
PAUSE_SECONDS = 1.0  # after one that could not be taken: no memory, or no descriptor

# Makes a connection, given what to call when its handshake has ended.
Factory = Callable[[Callable[[], None]], asyncio.Protocol]


class Taken:
    """A connection before it is open, or during its TLS handshake; to the others one that is idle.

    It is its own transport for them.
    """

    def __init__(self, plain: socket.socket, peer: Any, idle_since: float) -> None:
        self.plain = plain
        self.idle_since = idle_since
        self.task: asyncio.Task[None] | None = None
        self._peer = peer

    @property
    def transport(self) -> "Taken":
        """Itself; no attribute, so that none is left for the garbage collector."""
        return self

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return who is at the other end."""
        return self._peer if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        """Return 0: no answer waits."""
        return 0

    def close(self) -> None:
        """End it."""
        if self.task is not None:
            self.task.cancel()

    abort = close


class Listener:
    """Takes the connections of one socket; uvicorn closes it like a server of the event loop."""

    def __init__(
        self,
        listening: socket.socket,
        name: str,
        tls: ssl.SSLContext | None,
        application: DirectApplication,
        make: Factory,
    ) -> None:
        self._listening = listening
        self._name = name
        self._application = application
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._waiting: Turns[Taken] = Turns()
        self._handshakes = None if tls is None else Handshakes(tls)
        self._shaking: set[Taken] = set()
        self._opening: set[asyncio.Task[None]] = set()  # kept: the event loop itself holds on to no task
        self._pause: asyncio.TimerHandle | None = None
        self._take_at = 0.0  # by the event loop's clock
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Take no more connections; those that are taken are opened, and handshakes go on."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        while self._waiting.num:
            self._open_next()

    def end_handshakes(self) -> None:
        """End what has not become a connection yet."""
        for each in list(self._shaking):
            each.close()

    async def wait_closed(self) -> None:
        """Wait for the end of the handshakes."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    @property
    def num_opening(self) -> int:
        """How many connections are taken, but not open yet."""
        return self._waiting.num + len(self._opening)

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._go_on)
        if self._waiting.num:
            self._go_on()

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(seconds, self._resume)

    def _go_on(self) -> None:
        """Take new connections, and open some of those that wait."""
        now = self._loop.time()
        if now >= self._take_at:
            self._take(now)
        for _ in range(min(MOST_OPENED, self._waiting.num)):
            self._open_next()
        if self._waiting.num:
            self._rest(BREATH_SECONDS)
        elif now < self._take_at:
            self._rest(self._take_at - now)

    def _take(self, now: float) -> None:
        for _ in range(min(MOST_TAKEN, self._application.connections.most_waiting - self._waiting.num)):
            try:
                plain, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("no connection can be taken for %g s: %s", PAUSE_SECONDS, error)  # noqa: TRY400
                self._take_at = now + PAUSE_SECONDS
                return
            taken = Taken(plain, peer, now)
            client = self._application.greet(taken, self._name)
            most = self._application.connections.most_of(client, self._name)
            address = network_of(client.address)
            if self._waiting.add(taken, address) > most:
                self._waiting.pop_of(address).plain.close()
                self._application.connections.count_displaced()

    def _open_next(self) -> None:
        taken = self._waiting.pop()
        taken.plain.setblocking(False)
        with contextlib.suppress(OSError):
            taken.plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._handshakes is None:
            self._begin(self._open(taken.plain))
        else:
            self._count(taken, self._handshakes)

    def _count(self, taken: Taken, handshakes: Handshakes) -> None:
        """Have the connection count as one that is idle until its handshake has ended."""
        client = self._application.greet(taken, self._name)
        if self._application.connections.add(taken, client, self._name) is not None:
            self._application.connections.remove(taken)  # nobody can be told anything before the handshake
            taken.plain.close()
            return
        self._shaking.add(taken)
        taken.task = self._begin(self._shake_hands(taken, network_of(client.address), handshakes))

    def _begin(self, opening: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return task

    async def _shake_hands(self, taken: Taken, address: str, handshakes: Handshakes) -> None:
        def when_made() -> None:
            self._application.connections.remove(taken)

        try:
            with contextlib.suppress(OSError):  # what strangers do in a handshake is no news
                await handshakes.open(taken.plain, address, lambda: self._make(when_made))
        finally:
            when_made()
            self._shaking.discard(taken)

    async def _open(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(lambda: self._make(lambda: None), plain)
