"""The gateway's end of a worker's socket.

Written on readiness callbacks rather than on a transport: `sendmsg` takes an image's bytes from where they lie, on any
event loop, and answers that a worker gave before it died are read before its end is reported.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from service.backends.embedded.wire import WireError, WorkerAnswer, take_answer

READ_BYTES = 64 * 1024
# A batch of small images goes into the kernel's buffer at once; the kernel may allow less.
SEND_BUFFER_BYTES = 1024 * 1024
MOST_PIECES_AT_ONCE = 1024  # IOV_MAX


class Connection:
    """Sends commands, reads answers; `on_end` is called last and once, with the error or an empty text."""

    def __init__(
        self, end: socket.socket, on_answer: Callable[[WorkerAnswer], None], on_end: Callable[[str], None]
    ) -> None:
        self._socket = end
        self._on_answer = on_answer
        self._on_end = on_end
        self._received = bytearray()
        self._unsent: deque[bytes | memoryview] = deque()
        self._waits_for_room = False
        self.is_open = False

    def start(self) -> None:
        """Begin to read."""
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.is_open = True
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._readable)

    def send(self, pieces: Sequence[bytes]) -> None:
        """Send `pieces` as one command, now or as soon as the worker reads."""
        if not self.is_open:
            return  # its end has been reported
        self._unsent.extend(pieces)
        if len(self._unsent) == len(pieces):
            self._writable()

    def close(self) -> None:
        """Close the socket; no callback is called any more."""
        if self.is_open:
            self.is_open = False
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket.fileno())
            loop.remove_writer(self._socket.fileno())
        self._unsent.clear()
        self._socket.close()

    def _writable(self) -> None:
        loop, descriptor = asyncio.get_running_loop(), self._socket.fileno()
        try:
            while self._unsent:
                num_bytes = self._socket.sendmsg(list(islice(self._unsent, MOST_PIECES_AT_ONCE)))
                while self._unsent and num_bytes >= len(self._unsent[0]):
                    num_bytes -= len(self._unsent.popleft())
                if num_bytes:
                    self._unsent[0] = memoryview(self._unsent[0])[num_bytes:]
        except (BlockingIOError, InterruptedError):
            loop.add_writer(descriptor, self._writable)
            self._waits_for_room = True
            return
        except OSError:
            self._unsent.clear()  # the worker has gone: reading reports it, after its last answers
        if self._waits_for_room:  # nearly never: all of a batch fits into the kernel's buffer
            loop.remove_writer(descriptor)
            self._waits_for_room = False

    def read_now(self) -> None:
        """Read all that has arrived, without waiting for the event loop."""
        while self.is_open and self._readable():
            pass

    def _readable(self) -> bool:
        """Read once; tell whether there was anything."""
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        self._received += data
        wrong = ""
        try:
            while self.is_open and (answer := take_answer(self._received)) is not None:
                self._on_answer(answer)
        except WireError as error:
            wrong = f"its answer cannot be read: {error}"
        if (wrong or not data) and self.is_open:
            self.close()
            self._on_end(wrong)
        return True
