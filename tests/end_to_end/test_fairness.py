"""Ten clients and one that sends fifty times as much as each: what the ten get, beside what they get without it."""

import asyncio
import base64
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.gateway import GatewayProcess
from tests.odd_archive import make_odd_store

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

# A batch takes this long, asleep: the machine's own speed does not decide what comes out.
FIXED_SECONDS, ITEM_SECONDS = 0.0025, 0.01
AT_LOAD = f"""
def answer(row, index, context, whole=self.answer):
    started, answered = time.monotonic(), whole(row, index, context)
    if isinstance(answered, dict):
        return answered
    document = json.loads(answered)
    time.sleep({FIXED_SECONDS} + {ITEM_SECONDS} * len(document["results"]))
    document["timings_ms"]["compute"] = (time.monotonic() - started) * 1000
    return json.dumps(document).encode()
self.answer = answer
"""
OPTIONS = {"TORCHGATE_BACKEND": "workers", "TORCHGATE_LATENCY_OBJECTIVE_MS": "250", "TORCHGATE_SLOW_REQUEST_MS": "0"}
SECONDS = 60.0
NUM_SLICES = 2  # of that time, in turns without and with the greedy client: a machine may have slow minutes
NUM_CLIENTS = 10
RATE = 10.0  # requests of one image a second, of each: 600 answers are enough for a p99
GREED = 50
IMAGES_AT_ONCE = 5  # of the greedy client, in one request
LEAST_RATIO, MOST_P99_RATIO = 0.95, 1.5
KEYS = [f"key-of-client-{number}" for number in range(NUM_CLIENTS + 1)]
ONE = b"class:1"
SEVERAL = json.dumps({"instances": [{"b64": base64.b64encode(ONE).decode()}] * IMAGES_AT_ONCE}).encode()


@dataclass
class Client:
    """One client in an open loop: it sends at times of its own, whatever becomes of what it sent."""

    url: str
    address: str
    key: str
    rate: float
    body: bytes = ONE
    content_type: str = "image/png"
    seconds: list[float] = field(default_factory=list)  # of what was answered
    codes: Counter[int] = field(default_factory=Counter)
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def send(self, num_seconds: float, seed: int) -> None:
        """Send for so long, at random times that depend on the seed alone, then wait for the answers."""
        times, due = random.Random(seed), time.monotonic()
        end = due + num_seconds
        async with asyncio.TaskGroup() as requests:
            while (due := due + times.uniform(0.5, 1.5) / self.rate) < end:
                await asyncio.sleep(max(due - time.monotonic(), 0))
                requests.create_task(self.ask(due))
        for _, writer in self.idle:
            writer.close()
        self.idle.clear()

    async def ask(self, due: float) -> None:
        """Send one request; its time counts from when it was due."""
        async with self.connection() as (reader, writer):
            head = (
                f"POST /predict HTTP/1.1\r\nHost: {urlsplit(self.url).netloc}\r\nContent-Type: {self.content_type}\r\n"
            )
            head += f"X-API-Key: {self.key}\r\nContent-Length: {len(self.body)}\r\n\r\n"
            writer.write(head.encode() + self.body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
        code = int(answer.split()[1])
        self.codes[code] += 1
        if code == 200:
            self.seconds.append(time.monotonic() - due)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Lend a connection from this client's own address."""
        place = urlsplit(self.url)
        streams = self.idle.pop() if self.idle else None
        if streams is None:
            streams = await asyncio.open_connection(place.hostname, place.port, local_addr=(self.address, 0))
        yield streams
        self.idle.append(streams)

    @property
    def p99(self) -> float:
        """Return the time that 99 of 100 answers took at most."""
        return sorted(self.seconds)[int(0.99 * (len(self.seconds) - 1))]


def clients(url: str, by: str) -> list[Client]:
    """Return the ten clients."""
    return [Client(url, _address(number, by), KEYS[number], RATE) for number in range(NUM_CLIENTS)]


def greedy_client(url: str, by: str) -> Client:
    """Return the one that sends fifty times as much, in fewer requests."""
    rate = GREED * RATE / IMAGES_AT_ONCE
    return Client(url, _address(NUM_CLIENTS, by), KEYS[NUM_CLIENTS], rate, SEVERAL, "application/json")


def _address(number: int, by: str) -> str:
    return "127.0.0.1" if by == "key" else f"127.0.0.{number + 2}"


def run(everybody: list[Client], seconds: float, number: int) -> None:
    """Have all clients send for so long, each at times that depend on the slice's number, whoever else sends."""

    async def send() -> None:
        await asyncio.gather(*(each.send(seconds, 100 * number + index) for index, each in enumerate(everybody)))

    asyncio.run(send())


@pytest.mark.parametrize("by", ["key", "address"])
def test_one_greedy_client_leaves_the_others_what_they_had(tmp_path: Path, by: str) -> None:
    store = make_odd_store(tmp_path / "store", at_load=AT_LOAD)
    keys = {"TORCHGATE_API_KEYS": ",".join(KEYS)} if by == "key" else {}
    with GatewayProcess(TORCHGATE_MODEL_STORE=str(store), **OPTIONS, **keys) as gateway:
        gateway.until_every_version_is_ready()
        run(clients(gateway.url, by), 5, NUM_SLICES)  # the batcher learns what a batch costs
        before, after, greedy = clients(gateway.url, by), clients(gateway.url, by), greedy_client(gateway.url, by)
        for number in range(NUM_SLICES):
            run(before, SECONDS / NUM_SLICES, number)
            run([*after, greedy], SECONDS / NUM_SLICES, number)
    print(f"\nby {by}: answers in {SECONDS:g} s and p99 in ms, without the greedy client and with it")
    ratios = []
    for number, (alone, beside) in enumerate(zip(before, after, strict=True)):
        ratio, p99_ratio = len(beside.seconds) / len(alone.seconds), beside.p99 / alone.p99
        ratios.append((ratio, p99_ratio))
        figures = f"{len(alone.seconds)} {alone.p99 * 1000:.0f} -> {len(beside.seconds)} {beside.p99 * 1000:.0f}"
        print(f"client {number}: {figures}, {ratio:.3f} and {p99_ratio:.2f} of it; {dict(beside.codes)}")
    num_images = IMAGES_AT_ONCE * greedy.codes[200]
    print(f"greedy: {num_images} images answered, p99 {greedy.p99 * 1000:.0f} ms; {dict(greedy.codes)}")
    assert min(ratio for ratio, _ in ratios) >= LEAST_RATIO
    assert max(ratio for _, ratio in ratios) <= MOST_P99_RATIO
    assert greedy.codes[200] > 0, "it gets what the others leave"
    assert greedy.codes[429] > greedy.codes[200]
