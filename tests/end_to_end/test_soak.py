"""Half an hour at 60 % of capacity, with rollouts, killed workers, upgrades and a database that restarts.

`TORCHGATE_TEST_SOAK_SECONDS` is how long, 1,800 unless it is set. The upgrades lie in the first third: afterwards the
last gateway's memory, descriptors and threads are watched for a trend.
"""

import asyncio
import collections
import itertools
import os
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

from tests.digits import png
from tests.end_to_end.test_workers import workers_of
from tests.gateway import AUTHORIZATION, GatewayProcess
from tests.postgres import Postgres, postgres
from tests.stack import Trained, gateway_of_workers

SECONDS = float(os.environ.get("TORCHGATE_TEST_SOAK_SECONDS", "1800"))
NUM_CLIENTS = 16
NUM_IMAGES = 64
CAPACITY_SECONDS = 10.0
SHARE = 0.6
NUM_UPGRADES = 3
SAMPLE_SECONDS = 5.0
# The event loop's pool makes a thread whenever none is idle, so the last of them may come late: a leak makes more.
POOL_THREADS = min(32, (os.cpu_count() or 1) + 4)
HEADERS = {"Content-Type": "image/png"}
STABLE, OTHER = "1.0", "1.0-int8-static"
# A killed worker's batch fails by name; everything else is answered, and right.
ALLOWED = {"right", "worker_died"}


@dataclass
class Sample:
    """What the gateway and its workers use."""

    at: float
    gateway_bytes: int
    worker_bytes: int
    num_descriptors: int
    num_threads: int


@dataclass
class Soak:
    """Clients that pace themselves, what they saw, and the gateway of the moment."""

    url: str
    images: list[bytes]
    expected: dict[str, list[str]]  # labels by version, one for each image
    gateway: GatewayProcess
    rate: float = 0.0
    answers: collections.Counter[str] = field(default_factory=collections.Counter)
    odd: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    async def send(self, http: httpx.AsyncClient, number: int) -> None:
        """Send one image and count what came back."""
        index = number % len(self.images)
        try:
            answer = await http.post("/predict", content=self.images[index], headers=HEADERS)
        except httpx.TransportError as error:
            self.count(f"lost: {error!r}")
            return
        document = answer.json()
        if answer.status_code != 200:
            self.count(document["code"], answer.text)
        elif document["predictions"][0]["label"] == self.expected[document["version"]][index]:
            self.count("right")
        else:
            self.count("wrong", answer.text)

    def count(self, what: str, text: str = "") -> None:
        """Count an answer; keep the first odd ones whole."""
        self.answers[what] += 1
        if what not in ALLOWED and len(self.odd) < 10:
            self.odd.append(text or what)

    async def client(self, http: httpx.AsyncClient, first: int, stop: asyncio.Event) -> None:
        """Send at this client's share of the rate, or as fast as it is answered where the rate is 0."""
        due = time.monotonic()
        for number in itertools.count(first, NUM_CLIENTS):
            if stop.is_set():
                return
            await self.send(http, number)
            if self.rate:
                due = max(due + NUM_CLIENTS / self.rate, time.monotonic() - 1)
                await asyncio.sleep(max(due - time.monotonic(), 0))

    async def watch(self, stop: asyncio.Event) -> None:
        """Note what the gateway of the moment uses."""
        while not stop.is_set():
            process = self.gateway.process
            assert process is not None
            try:
                gateway = psutil.Process(process.pid)
                workers = sum(each.memory_info().rss for each in workers_of(self.gateway))
                self.samples.append(
                    Sample(
                        time.monotonic(), gateway.memory_info().rss, workers, gateway.num_fds(), gateway.num_threads()
                    )
                )
            except psutil.NoSuchProcess:
                pass  # it was just replaced
            await asyncio.sleep(SAMPLE_SECONDS)


def expectations(url: str, images: list[bytes]) -> dict[str, list[str]]:
    """Return what each version says of each image when nothing else is asked of it."""
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
        return {
            version: [
                http.post("/predict", params={"version": version}, content=image, headers=HEADERS).json()[
                    "predictions"
                ][0]["label"]
                for image in images
            ]
            for version in (STABLE, OTHER)
        }


async def change(http: httpx.AsyncClient, method: str, path: str, body: object = None) -> httpx.Response:
    """Ask for a change until the database is there to take it."""
    headers = {"If-Match": "*", **AUTHORIZATION}
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await http.request(method, path, json=body, headers=headers)
                if answer.status_code != 503:
                    return answer
            except httpx.TransportError:
                pass  # an idle connection to the gateway before an upgrade
            await asyncio.sleep(0.2)


async def roll_out(http: httpx.AsyncClient, version: str) -> str:
    """Move the traffic to a version in guarded steps; return how that ended."""
    spec = {"version": version, "steps": [10, 50, 100], "min_requests": 50, "min_seconds": 2}
    started = await change(http, "POST", "/models/digits/rollouts", spec)
    assert started.is_success, started.text
    path = started.headers.get("location") or f"/models/digits/rollouts/{started.json()['id']}"
    async with asyncio.timeout(180):
        while (answer := await change(http, "GET", path)).json()["state"] == "running":
            await asyncio.sleep(0.5)
    return str(answer.json()["state"])


def trend(samples: list[Sample], what: str) -> tuple[float, float, float]:
    """Return the first and last fitted value and three standard errors of their difference."""
    times = np.array([sample.at for sample in samples])
    values = np.array([float(getattr(sample, what)) for sample in samples])
    times -= times[0]
    (slope, start), covariance = np.polyfit(times, values, 1, cov=True)
    span = times[-1]
    return float(start), float(start + slope * span), float(3 * np.sqrt(covariance[0, 0]) * span)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 900)
def test_nothing_is_lost_and_nothing_grows(
    trained_digits: Trained, held_out: tuple[list[Image.Image], list[int]]
) -> None:
    images = [png(image) for image in random.Random(0).sample(held_out[0], NUM_IMAGES)]
    with tempfile.TemporaryDirectory(prefix="s-") as scratch, postgres() as server:
        (Path(scratch) / "tmp").mkdir()
        options = {
            "TMPDIR": str(Path(scratch) / "tmp"),
            "TORCHGATE_DATABASE_URL": server.url,
            "TORCHGATE_LATENCY_OBJECTIVE_MS": "100",
            "TORCHGATE_MODEL_STORE_POLICY": "all",
        }
        gateway = gateway_of_workers(trained_digits.store, **options)
        gateway.start()
        soak = Soak(gateway.url, images, {}, gateway)
        try:
            gateway.until_every_version_is_ready()
            options["TORCHGATE_PORT"] = gateway.url.rpartition(":")[2]
            soak.expected = expectations(gateway.url, images)
            asyncio.run(run(soak, server, trained_digits.store, options))
        finally:
            soak.gateway.stop()
    report(soak)


async def run(soak: Soak, server: Postgres, store: Path, options: dict[str, str]) -> None:
    """Measure the capacity, then send for the whole time while things happen."""
    limits = httpx.Limits(max_connections=NUM_CLIENTS, max_keepalive_connections=NUM_CLIENTS)
    async with (
        httpx.AsyncClient(base_url=soak.url, timeout=60, trust_env=False, limits=limits) as http,
        httpx.AsyncClient(base_url=soak.url, timeout=60, trust_env=False) as operator,
    ):
        answer = await change(operator, "PUT", "/models/digits/traffic", {"weights": {STABLE: 100}})
        assert answer.is_success, answer.text
        stop = asyncio.Event()
        clients = [asyncio.create_task(soak.client(http, number, stop)) for number in range(NUM_CLIENTS)]
        await asyncio.sleep(CAPACITY_SECONDS)  # the length of the load, not a wait for something
        soak.rate = SHARE * soak.answers["right"] / CAPACITY_SECONDS
        print(f"capacity {soak.rate / SHARE:.0f}/s, sent {soak.rate:.0f}/s", flush=True)
        watcher = asyncio.create_task(soak.watch(stop))
        started = time.monotonic()
        upgrades = [started + SECONDS / 3 * (n + 1) / (NUM_UPGRADES + 1) for n in range(NUM_UPGRADES)]
        versions = itertools.cycle((OTHER, STABLE))
        try:
            for turn in itertools.count():
                if time.monotonic() > started + SECONDS:
                    break
                print(f"{time.monotonic() - started:.0f} s: {dict(soak.answers)}", flush=True)
                if upgrades and time.monotonic() > upgrades[0]:
                    upgrades.pop(0)
                    await upgrade(soak, store, options)
                match turn % 3:
                    case 0:
                        assert await roll_out(operator, next(versions)) == "succeeded"
                    case 1:
                        random.Random(turn).choice(workers_of(soak.gateway)).kill()
                    case 2:
                        await asyncio.to_thread(server.restart)
                await asyncio.sleep(min(20, SECONDS / 30))  # the length of the load again
        finally:
            stop.set()
            await asyncio.gather(*clients, watcher)


async def upgrade(soak: Soak, store: Path, options: dict[str, str]) -> None:
    """Let a new gateway take over the port."""
    new = gateway_of_workers(store, **options)
    new.command.append("--take-over")
    old = soak.gateway
    await asyncio.to_thread(new.start, 180)
    await asyncio.to_thread(new.until_every_version_is_ready)
    soak.gateway = new
    assert old.process is not None
    assert await asyncio.to_thread(old.process.wait, 60) == 0, old.log[-2000:]  # it drains and ends by itself
    soak.samples.clear()


def report(soak: Soak) -> None:
    """Print what was seen; see that nothing was lost, wrong or growing."""
    print(f"answers: {dict(soak.answers)}")
    samples = soak.samples[len(soak.samples) // 5 :]  # what comes before is the warm-up
    for what in ("gateway_bytes", "worker_bytes", "num_descriptors", "num_threads"):
        first, last, noise = trend(samples, what)
        print(f"{what}: {first:,.0f} to {last:,.0f}, noise {noise:,.0f}, over {samples[-1].at - samples[0].at:.0f} s")
    assert set(soak.answers) <= ALLOWED, soak.odd
    for what in ("gateway_bytes", "worker_bytes", "num_descriptors", "num_threads"):
        first, last, noise = trend(samples, what)
        allowed = POOL_THREADS if what == "num_threads" else 0.02 * first
        assert last - first <= max(noise, allowed), what
