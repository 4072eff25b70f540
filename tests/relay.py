"""A TCP relay between a client and a server: a test can slow it down, cut it, stop it, or act before bytes arrive."""

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time


class Relay:
    """Passes bytes on between pairs of sockets, in a thread of its own."""

    def __init__(self, host: str, port: int, before: Callable[[bytes], None]) -> None:
        self._place = host, port
        self._before = before
        self.delay_seconds = 0.0  # of each piece of at most 64 KiB, one after the other
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._swallowed: list[socket.socket] = []
        self._lock = threading.Lock()

    def swallow(self) -> None:
        """Keep the connections of now open, and pass nothing on any more; new ones are served."""
        with self._lock:
            for each in self._pairs:
                self._selector.unregister(each)
            self._swallowed += self._pairs
            self._pairs.clear()

    def cut(self) -> None:
        """Reset the connections of now; new ones are served."""
        with self._lock:
            for each in self._pairs:
                self._selector.unregister(each)
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                each.close()
            self._pairs.clear()

    def run(self) -> None:
        """Relay until `stop`."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return
                with self._lock:
                    self._handle(key.fileobj)  # type: ignore[arg-type]

    def stop(self) -> None:
        """End `run`."""
        self._wake.send(b"x")

    def close(self) -> None:
        """Close all sockets."""
        for each in (*self._pairs, *self._swallowed, self._listener, self._wake, self._woken):
            each.close()
        self._selector.close()

    def _handle(self, ready: socket.socket) -> None:
        if ready is self._listener:
            one, _ = self._listener.accept()
            try:
                other = socket.create_connection(self._place)
            except OSError:  # the server is away
                one.close()
                return
            self._pairs |= {one: other, other: one}
            for each in (one, other):
                self._selector.register(each, selectors.EVENT_READ, None)
        elif ready in self._pairs:
            other = self._pairs[ready]
            received = b""
            with contextlib.suppress(OSError):
                received = ready.recv(65536)
            if received:
                time.sleep(self.delay_seconds)
                self._before(received)
                with contextlib.suppress(OSError):  # what was killed; its end is read next
                    other.sendall(received)
                return
            for each in (ready, other):
                self._selector.unregister(each)
                del self._pairs[each]
                each.close()


@contextlib.contextmanager
def running_relay(host: str, port: int, before: Callable[[bytes], None] = lambda _: None) -> Iterator[Relay]:
    """Run a relay to a server; `before` gets the bytes of either side before they are passed on."""
    relay = Relay(host, port, before)
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        yield relay
    finally:
        relay.stop()
        thread.join(10)
        relay.close()
