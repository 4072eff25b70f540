"""Attacks on one gateway, each from an address of its own: what its neighbours notice, and what it costs the gateway.

Beside each attack run clients at a steady rate and a probe that asks for /healthz all the time: the longest time of the
probe is at least the longest stall of the event loop. A turn without the attack comes right before it.
"""

import asyncio
import contextlib
import multiprocessing
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests import images
from tests.end_to_end.attacks import ATTACKS, HOST, IMAGE_ATTACKS, Attack
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
