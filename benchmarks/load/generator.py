"""An open-loop HTTP/1.1 generator: requests leave by a schedule, whatever happens to the ones before.

A latency counts from the scheduled moment, not from the one in which the request got its connection. So a server that
stalls is charged for all requests of that time: there is no coordinated omission. Statuses are kept apart. It is one
process with epoll and no framework, because it shares two cores with the server that it measures.

`python -m benchmarks.load.generator` reads a plan as JSON from standard input and prints the outcome as JSON.
"""

import errno
import gc
import json
import select
import socket
import sys
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.load.answers import LOST, parse_head, summarise
from benchmarks.load.endpoint import MARKER

RECEIVE_BYTES = 65536
HEAD_SECONDS = 0.2  # between reading the plan and the first request
# From this rate on it wakes once a tick and not for each request: waking up costs it more than a request does, and the
# server needs the core. Latencies come out longer by up to a tick.
BUSY_RATE = 500
TICK_SECONDS = 0.001


@dataclass(frozen=True)
class Plan:
    """The requests, their times, and the longest wait for an answer after the last one."""

    port: int
    path: str
    headers: dict[str, str]
    bodies: list[str]  # files
    times: Sequence[float]  # seconds from the start, ascending
    which: Sequence[int]  # of the bodies, one for each time
    objective_ms: float
    max_connections: int = 4096
    patience_seconds: float = 12.0


@dataclass(eq=False, slots=True)
class Connection:
    """One connection; `request` is the number of the request that it carries, or None."""

    link: socket.socket
    is_fresh: bool = True
    request: int | None = None
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    received: bytes = b""


class Generator:
    """Sends one plan; `run` returns when everything is answered or given up."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        head = "".join(f"{name}: {value}\r\n" for name, value in plan.headers.items())
        self.requests: list[list[bytes]] = []
        for name in plan.bodies:
            body = Path(name).read_bytes()
            lines = f"POST {plan.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n{head}\r\n"
            self.requests.append((lines.encode() + body).split(MARKER.encode()))
        self.statuses = array("h", [LOST]) * len(plan.times)
        self.latencies = array("d", [0.0]) * len(plan.times)
        self.lags = array("d", [0.0]) * len(plan.times)
        self.idle: list[Connection] = []
        self.open: dict[int, Connection] = {}
        self.waiting: deque[int] = deque()  # requests without a connection; their clock runs already
        self.num_answered = 0
        self.epoll = select.epoll()
        self.started = 0.0

    def run(self) -> None:
        """Send and receive."""
        gc.disable()
        times, clock = self.plan.times, time.perf_counter
        self.started = started = clock() + HEAD_SECONDS
        number, num_requests = 0, len(times)
        end = times[-1] + self.plan.patience_seconds
        is_busy = num_requests > BUSY_RATE * max(times[-1], 1.0)
        while self.num_answered < num_requests and (now := clock() - started) < end:
            while number < num_requests and times[number] <= now:
                self._send(number)
                self.lags[number] = clock() - started - times[number]
                number += 1
            if is_busy:
                time.sleep(TICK_SECONDS)
            else:  # epoll's own clock ticks in milliseconds, select's in microseconds
                until = times[number] if number < num_requests else end
                select.select([self.epoll.fileno()], [], [], max(until - (clock() - started), 0))
            for descriptor, mask in self.epoll.poll(0):
                connection = self.open.get(descriptor)
                if connection is not None:
                    self._serve(connection, mask)
        for connection in self.open.values():
            connection.link.close()
        self.epoll.close()

    def _send(self, number: int) -> None:
        if self.idle:
            connection = self.idle.pop()
        elif len(self.open) < self.plan.max_connections:
            connection = self._connect()
        else:
            self.waiting.append(number)
            return
        connection.request = number
        pieces = self.requests[self.plan.which[number]]
        # As long as the marker, so that the length in the head stays right.
        connection.unsent = memoryview((b"%024x" % number).join(pieces))
        if not connection.is_fresh:
            self._flush(connection)

    def _connect(self) -> Connection:
        """Return a new connection; its request leaves as soon as the socket can be written to."""
        link = socket.socket()
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = link.connect_ex(("127.0.0.1", self.plan.port))
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, "cannot connect")
        connection = Connection(link)
        self.open[link.fileno()] = connection
        self.epoll.register(link.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return connection

    def _flush(self, connection: Connection) -> None:
        try:
            num_sent = connection.link.send(connection.unsent)
        except BlockingIOError:
            num_sent = 0
        except OSError:
            self._drop(connection)
            return
        connection.unsent = connection.unsent[num_sent:]
        if connection.unsent:
            self.epoll.modify(connection.link.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _serve(self, connection: Connection, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self.epoll.modify(connection.link.fileno(), select.EPOLLIN)
            self._flush(connection)
            if connection.link.fileno() < 0:
                return
        if not mask & ~select.EPOLLOUT:
            return
        try:
            chunk = connection.link.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._drop(connection)
            return
        connection.received += chunk
        self._read(connection)

    def _read(self, connection: Connection) -> None:
        parsed = parse_head(connection.received)
        if parsed is None or len(connection.received) < parsed[1] or connection.request is None:
            return
        self._record(connection.request, parsed[0])
        connection.request, connection.received, connection.is_fresh = None, b"", False
        if parsed[2]:
            self._drop(connection)
            return
        self.idle.append(connection)
        if self.waiting:
            self._send(self.waiting.popleft())

    def _record(self, number: int, status: int) -> None:
        self.statuses[number] = status
        self.latencies[number] = time.perf_counter() - self.started - self.plan.times[number]
        self.num_answered += 1

    def _drop(self, connection: Connection) -> None:
        """Forget a connection that the server closed; send again what it had not begun to answer on a used one."""
        del self.open[connection.link.fileno()]
        connection.link.close()
        if connection in self.idle:
            self.idle.remove(connection)
        if connection.request is None:
            return
        if connection.is_fresh or connection.received:
            self._record(connection.request, LOST)
        else:
            self._send(connection.request)


def main() -> None:
    """Run the plan that standard input holds."""
    plan = Plan(**json.load(sys.stdin))
    generator = Generator(plan)
    generator.run()
    json.dump(summarise(generator.statuses, generator.latencies, plan.objective_ms), sys.stdout)


if __name__ == "__main__":
    main()
