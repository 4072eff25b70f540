"""The attackers: each sends from an address of its own until it is told to stop."""

import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event

from PIL import Image

from tests import images

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
