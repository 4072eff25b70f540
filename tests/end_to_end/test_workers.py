"""A gateway that runs its workers itself, under fire: `make serve BACKEND=workers` has nothing beside it."""

import asyncio
import collections
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.faults import recovery
from tests.gateway import GatewayProcess
from tests.odd_archive import make_odd_store
from tests.stack import gateway_of_workers

NUM_CLIENTS = 32
NUM_WORKERS = 2
HEADERS = {"Content-Type": "image/png"}


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="w-") as folder:
        yield Path(folder)


@pytest.fixture
def gateway(scratch: Path) -> Iterator[GatewayProcess]:
    (scratch / "tmp").mkdir()
    with gateway_of_workers(make_odd_store(scratch / "store"), TMPDIR=str(scratch / "tmp")) as process:
        process.until_every_version_is_ready()
        yield process


def workers_of(gateway: GatewayProcess) -> list[psutil.Process]:
    assert gateway.process is not None
    return [each for each in psutil.Process(gateway.process.pid).children(recursive=True) if _is_worker(each)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any("launch.py" in part for part in process.cmdline())
    except psutil.Error:
        return False


def metric(gateway: GatewayProcess, name: str) -> float:
    lines = httpx.get(f"{gateway.url}/metrics", timeout=10, trust_env=False).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_each_worker_is_killed_in_turn_under_load(gateway: GatewayProcess) -> None:
    answers: collections.Counter[str] = collections.Counter()

    async def client(number: int, http: httpx.AsyncClient, stop: asyncio.Event) -> None:
        chosen = number % 4
        label = ["zero", "one", "two", "three"][chosen]
        while not stop.is_set():
            answer = await http.post("/predict", content=f"class:{chosen}".encode(), headers=HEADERS)
            if answer.status_code == 200:
                answers["right" if answer.json()["predictions"][0]["label"] == label else "wrong"] += 1
            else:
                answers[answer.json()["code"]] += 1

    async def run(victims: list[psutil.Process]) -> None:
        stop = asyncio.Event()
        limits = httpx.Limits(max_connections=NUM_CLIENTS + 1)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=40, limits=limits, trust_env=False) as http:
            clients = [asyncio.create_task(client(number, http, stop)) for number in range(NUM_CLIENTS)]
            try:
                async with asyncio.timeout(100):
                    for victim in victims:
                        before, dead = answers["right"], metric_of_restarts()
                        while answers["right"] < before + 200:
                            await asyncio.sleep(0.01)
                        with recovery("a worker is killed"):
                            victim.kill()
                            # One comes in reserve when every place is filled again; the gauges are up to a look behind.
                            while metric_of_restarts() == dead or len(workers_of(gateway)) <= NUM_WORKERS:
                                await asyncio.sleep(0.05)
                    before = answers["right"]
                    while answers["right"] < before + 200:
                        await asyncio.sleep(0.01)
            finally:
                stop.set()
                await asyncio.gather(*clients)  # a client that got no answer raises here

    def metric_of_restarts() -> float:
        return metric(gateway, "torchgate_worker_restarts_total")

    serving = {each.pid for each in workers_of(gateway)}
    asyncio.run(run([each for each in workers_of(gateway) if each.pid in serving][:NUM_WORKERS]))
    print(f"answers: {dict(answers)}")
    # Of a batch whose worker was killed each image may fail; nothing else may.
    assert set(answers) <= {"right", "worker_died"}
    assert answers["worker_died"] <= 64 * NUM_WORKERS


def test_a_gateway_that_is_killed_leaves_no_process_and_the_next_one_no_file(scratch: Path) -> None:
    (scratch / "tmp").mkdir()
    with gateway_of_workers(make_odd_store(scratch / "store"), TMPDIR=str(scratch / "tmp")) as first:
        first.until_every_version_is_ready()
        workers = workers_of(first)
        assert len(workers) >= NUM_WORKERS
        os.kill(workers[0].pid, signal.SIGSTOP)  # it will not notice by itself
        assert first.process is not None
        first.process.kill()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    left = list((scratch / "tmp").rglob("*"))
    assert len([path for path in left if path.name.startswith("torchgate-workers-")]) == 1
    with gateway_of_workers(scratch / "store", TMPDIR=str(scratch / "tmp")) as second:
        second.until_every_version_is_ready()
        assert not [path for path in left if path.exists() and not path.is_dir()]
        workers = workers_of(second)
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    assert list((scratch / "tmp").iterdir()) == []


def test_one_killed_while_it_starts_its_workers_leaves_nothing_running(scratch: Path) -> None:
    with gateway_of_workers(make_odd_store(scratch / "store")) as gateway:
        deadline = time.monotonic() + 30
        while not (workers := workers_of(gateway)):
            assert time.monotonic() < deadline
        assert gateway.process is not None
        gateway.process.kill()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive


def test_an_archive_that_does_not_load_says_why_to_who_asks(scratch: Path) -> None:
    store = make_odd_store(scratch / "store", at_load="raise RuntimeError('the weights are sour')")
    with gateway_of_workers(store) as gateway:
        deadline = time.monotonic() + 60
        while "sour" not in (answer := gateway.get("/readyz")).text:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.05)
        assert answer.status_code == 503
