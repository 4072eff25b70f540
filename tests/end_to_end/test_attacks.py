"""Attacks on one gateway, each from an address of its own: what its neighbours notice, and what it costs the gateway.

Beside each attack run clients at a steady rate and a probe that asks for /healthz all the time: the longest time of the
probe is at least the longest stall of the event loop. A turn without the attack comes right before it.
"""

import asyncio
import contextlib
import itertools
import multiprocessing
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from PIL import Image

from tests import images
from tests.end_to_end.test_fairness import AT_LOAD, OPTIONS, Client
from tests.faults import until
from tests.gateway import GatewayProcess
from tests.odd_archive import make_odd_store
from tests.stack import Trained, gateway_of_workers

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

SECONDS, FIRST_SECONDS = 12.0, 3.0
NUM_CLIENTS = 4
RATE = 10.0  # requests a second, of each
PROBE_SECONDS = 0.01
MOST_STALL_SECONDS, MOST_P99_RATIO, MOST_BYTES = 0.1, 2.0, 4 * 1024 * 1024
BODY_BYTES = 31 * 1024 * 1024
ATTACKER = "127.0.0.99"
HOST = b"Host: localhost\r\n"

Place = tuple[str, int]
Attack = Callable[[Place, Event], None]


@contextlib.contextmanager
def connected(place: Place, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    """Connect from the attacker's address."""
    with socket.socket() as plain:
        if receive_bytes is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        plain.settimeout(5)
        plain.bind((ATTACKER, 0))
        plain.connect(place)
        yield plain


def send_bodies(place: Place, stop: Event, content_type: bytes, body: bytes) -> None:
    """Send one body after the other on one connection at a time, and wait for each answer."""
    head = b"POST /predict HTTP/1.1\r\n%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    while not stop.is_set():
        with contextlib.suppress(OSError), connected(place) as plain:
            while not stop.is_set():
                plain.sendall(head % (HOST, content_type, len(body)) + body)
                if not plain.recv(65536):
                    break


def false_boundaries(place: Place, stop: Event) -> None:
    """Multipart bodies of boundaries that are none."""
    send_bodies(place, stop, b"multipart/form-data; boundary=b", (b"\r\n--bx" * (BODY_BYTES // 6 + 1))[:BODY_BYTES])


def empty_parts(place: Place, stop: Event) -> None:
    """Multipart bodies of nothing but parts."""
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n\r\n'
    send_bodies(place, stop, b"multipart/form-data; boundary=b", part * (BODY_BYTES // len(part)))


def deep_json(place: Place, stop: Event) -> None:
    """JSON of nothing but brackets."""
    send_bodies(place, stop, b"application/json", b"[" * BODY_BYTES)


def many_instances(place: Place, stop: Event) -> None:
    """JSON of millions of tiny instances."""
    send_bodies(place, stop, b"application/json", b'{"instances":[' + b"{}," * (BODY_BYTES // 3 - 10) + b"{}]}")


def tiny_chunks(place: Place, stop: Event) -> None:
    """Bodies in chunks of one byte."""
    head = b"POST /predict HTTP/1.1\r\n%bContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n" % HOST
    pieces = b"1\r\nx\r\n" * 10_000
    while not stop.is_set():
        with contextlib.suppress(OSError), connected(place) as plain:
            plain.sendall(head)
            while not stop.is_set():
                plain.sendall(pieces)


def unread_answers(place: Place, stop: Event) -> None:
    """Requests for a large document, in a pipeline whose answers nobody reads."""
    request = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\n%b\r\n" % HOST
    while not stop.is_set():
        with contextlib.suppress(OSError), connected(place, 4096) as plain:
            while not stop.is_set():
                plain.send(request * 500)


def pipelined(place: Place, stop: Event) -> None:
    """The shortest requests, thousands at once."""
    requests = b"GET / HTTP/1.1\r\n%b\r\n" % HOST * 2000
    while not stop.is_set():
        with contextlib.suppress(OSError), connected(place) as plain:
            plain.setblocking(False)
            while not stop.is_set():
                for act in (lambda: plain.send(requests), lambda: plain.recv(1 << 20)):
                    with contextlib.suppress(BlockingIOError):
                        act()


def large_heads(place: Place, stop: Event) -> None:
    """Heads as large as they may be."""
    fields = b"".join(b"X-%d: %b\r\n" % (number, b"a" * 480) for number in range(120))
    request = b"GET /healthz HTTP/1.1\r\n" + HOST + fields + b"\r\n"
    while not stop.is_set():
        with contextlib.suppress(OSError), connected(place) as plain:
            while not stop.is_set():
                plain.sendall(request * 8)
                plain.recv(65536)


def silent(place: Place, stop: Event) -> None:
    """Connections that say nothing, more than are taken."""
    with contextlib.ExitStack() as stack:
        for _ in range(3000):
            if stop.is_set():
                return
            with contextlib.suppress(OSError):
                stack.enter_context(connected(place))
        stop.wait()


def slow_heads(place: Place, stop: Event) -> None:
    """A thousand heads, each of which gets a byte a second."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(connected(place)) for _ in range(1000)]
        for byte in itertools.chain(b"GET /healthz HTTP/1.1\r\nX: ", itertools.repeat(ord("a"))):
            for each in opened:
                with contextlib.suppress(OSError):
                    each.send(bytes([byte]))
            if stop.wait(1):
                return


def slow_bodies(place: Place, stop: Event) -> None:
    """Five hundred large bodies, each of which gets a byte a second."""
    head = b"POST /predict HTTP/1.1\r\n%bContent-Type: image/png\r\nContent-Length: %d\r\n\r\n" % (HOST, BODY_BYTES)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(connected(place)) for _ in range(500)]
        for each in opened:
            each.sendall(head)
        while not stop.wait(1):
            for each in opened:
                with contextlib.suppress(OSError):
                    each.send(b"x")


def flood(place: Place, stop: Event) -> None:
    """New connections as fast as they are taken."""
    while not stop.is_set():
        with contextlib.suppress(OSError), connected(place) as plain:
            plain.sendall(b"G")


def bombs(place: Place, stop: Event) -> None:
    """Images of 88 megapixels in 16 bits, in some kilobytes."""
    send_bodies(place, stop, b"image/png", images.encode(Image.new("I;16", (9400, 9400)), "PNG"))


def dear_images(place: Place, stop: Event) -> None:
    """Images of the largest size that is taken."""
    send_bodies(place, stop, b"image/png", images.encode(Image.new("I;16", (5000, 5000)), "PNG"))


# How many connections each has, and how many bytes of bodies the gateway has taken in: it counts and bounds these.
ATTACKS: list[tuple[Attack, int, int]] = [
    (false_boundaries, 1, BODY_BYTES),
    (empty_parts, 1, BODY_BYTES),
    (deep_json, 1, BODY_BYTES),
    (many_instances, 1, BODY_BYTES),
    (tiny_chunks, 1, BODY_BYTES),
    (unread_answers, 1, 0),
    (pipelined, 1, 0),
    (large_heads, 1, 0),
    (silent, 1024, 0),
    (slow_heads, 1000, 0),
    (slow_bodies, 500, 0),
    (flood, 1, 0),
]


IMAGE_ATTACKS: list[tuple[Attack, int, int]] = [(bombs, 1, 1_000_000), (dear_images, 1, 1_000_000)]


@dataclass
class Turn:
    """What was seen in one turn."""

    p99: float
    codes: Counter[int]
    longest_probe: float
    most_bytes: int  # of the gateway's memory


@dataclass
class Probe:
    """Asks for /healthz all the time."""

    url: str
    longest: float = 0.0
    rss: list[int] = field(default_factory=list)

    async def ask(self, seconds: float, process: psutil.Process) -> None:
        place = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port, local_addr=("127.0.0.98", 0))
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            writer.write(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            self.longest = max(self.longest, time.monotonic() - began)
            self.rss.append(process.memory_info().rss)
            await asyncio.sleep(PROBE_SECONDS)
        writer.close()


def turn(gateway: GatewayProcess, seconds: float, **asked: Any) -> Turn:
    """Have the clients and the probe ask for so long."""
    neighbours = [Client(gateway.url, f"127.0.0.{number + 2}", "none", RATE, **asked) for number in range(NUM_CLIENTS)]
    assert gateway.process is not None
    probe, process = Probe(gateway.url), psutil.Process(gateway.process.pid)

    async def run() -> None:
        await asyncio.gather(
            probe.ask(seconds, process), *(each.send(seconds, seed) for seed, each in enumerate(neighbours))
        )

    asyncio.run(run())
    waits = sorted(second for each in neighbours for second in each.seconds)
    codes = sum((each.codes for each in neighbours), Counter[int]())
    return Turn(waits[int(0.99 * (len(waits) - 1))], codes, probe.longest, max(probe.rss))


@contextlib.contextmanager
def attacked(attack: Attack, gateway: GatewayProcess) -> Iterator[None]:
    """Run an attack in a process of its own."""
    place = urlsplit(gateway.url)
    context, num_before = multiprocessing.get_context("spawn"), _num_connections(gateway)
    stop = context.Event()
    process = context.Process(target=attack, args=((place.hostname, place.port), stop))
    process.start()
    assert process.pid is not None
    psutil.Process(process.pid).nice(19)  # it would be another machine: it takes no core from those it attacks
    try:
        until(lambda: _num_connections(gateway) > num_before, gateway)
        yield
    finally:
        stop.set()
        process.join(10)
        process.kill()
        process.join()


def _num_connections(gateway: GatewayProcess) -> float:
    (line,) = re.findall(r'^torchgate_connections{listener="http"} .*$', gateway.get("/metrics").text, re.MULTILINE)
    return float(line.split()[1])


def faults_of(gateway: GatewayProcess, attacks: list[tuple[Attack, int, int]], **asked: Any) -> list[str]:
    """Run one attack after the other; print what was seen, and return those that did too much."""
    faults = []
    turn(gateway, SECONDS, **asked)
    print("\nattack: p99 of the neighbours in ms without and with it, the probe's longest, memory")
    for attack, num_connections, num_body_bytes in attacks:
        with attacked(attack, gateway):  # the allocator keeps some of what it got, once for all connections
            turn(gateway, FIRST_SECONDS, **asked)
        before = turn(gateway, SECONDS, **asked)
        with attacked(attack, gateway):
            beside = turn(gateway, SECONDS, **asked)
        ratio, grown = beside.p99 / before.p99, beside.most_bytes - before.most_bytes
        print(
            f"{attack.__name__}: {before.p99 * 1000:.0f} -> {beside.p99 * 1000:.0f}, {ratio:.2f} of it; probe "
            f"{before.longest_probe * 1000:.0f} -> {beside.longest_probe * 1000:.0f} ms; memory "
            f"{before.most_bytes / 2**20:.0f} -> {beside.most_bytes / 2**20:.0f} MiB; {dict(beside.codes)}",
            flush=True,
        )
        if (
            set(beside.codes) != {200}
            or ratio > MOST_P99_RATIO
            or beside.longest_probe > MOST_STALL_SECONDS
            or grown > num_connections * MOST_BYTES + num_body_bytes
        ):
            faults.append(attack.__name__)
    assert gateway.get("/healthz").status_code == 200
    return faults


def test_neighbours_hardly_notice_an_attack(tmp_path: Path) -> None:
    store = make_odd_store(tmp_path / "store", at_load=AT_LOAD)
    with GatewayProcess(TORCHGATE_MODEL_STORE=str(store), **OPTIONS) as gateway:
        gateway.until_every_version_is_ready()
        assert not faults_of(gateway, ATTACKS)


def test_neighbours_hardly_notice_dear_images(trained_digits: Trained) -> None:
    with gateway_of_workers(trained_digits.store, TORCHGATE_LATENCY_OBJECTIVE_MS="100") as gateway:
        gateway.until_every_version_is_ready()
        assert not faults_of(gateway, IMAGE_ATTACKS, body=images.grey_png())
