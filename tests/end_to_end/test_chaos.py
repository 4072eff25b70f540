"""What users fear: the client that vanishes, the worker that dies, the server that goes and comes back."""

import asyncio
import collections
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests import images
from tests.end_to_end.test_images import bars
from tests.faults import recovery
from tests.gateway import GatewayProcess
from tests.stack import Trained, gateway_over
from tests.torchserve_process import TorchServeProcess

NUM_CLIENTS = 16
ANSWERS_AFTER_RECOVERY = 50


@pytest.fixture
def stack(trained: Trained) -> Iterator[tuple[TorchServeProcess, GatewayProcess]]:
    """A stack of its own, with one worker, so that its death leaves nobody."""
    with (
        TorchServeProcess(trained.store) as torchserve,
        gateway_over(torchserve, TORCHGATE_WORKERS_PER_VERSION="1") as gateway,
    ):
        gateway.until_every_version_is_ready()
        yield torchserve, gateway


def status_of(gateway: GatewayProcess, path: str) -> int:
    return httpx.get(f"{gateway.url}{path}", timeout=10, trust_env=False).status_code


def test_a_worker_dies_under_load(stack: tuple[TorchServeProcess, GatewayProcess]) -> None:
    torchserve, gateway = stack
    image = images.encode(bars(True), "PNG")
    statuses: collections.Counter[int] = collections.Counter()
    others: list[str] = []

    async def client(http: httpx.AsyncClient, stop: asyncio.Event) -> None:
        while not stop.is_set():
            answer = await http.post("/predict", content=image, headers={"Content-Type": "image/png"})
            statuses[answer.status_code] += 1
            if answer.status_code not in {200, 503, 504} or not answer.content:
                others.append(answer.text)

    async def run() -> None:
        stop = asyncio.Event()
        async with httpx.AsyncClient(base_url=gateway.url, timeout=40, trust_env=False) as http:
            clients = [asyncio.create_task(client(http, stop)) for _ in range(NUM_CLIENTS)]
            try:
                async with asyncio.timeout(100):
                    await _until(lambda: statuses[200] >= ANSWERS_AFTER_RECOVERY)
                    for worker in torchserve.workers():
                        worker.kill()
                    await _until(lambda: statuses[503] + statuses[504] > 0)
                    before = statuses[200]
                    with recovery("TorchServe's worker is killed"):
                        await _until(lambda: statuses[200] >= before + ANSWERS_AFTER_RECOVERY)
            finally:
                stop.set()
                # Every request gets an answer: a client that got none raises here.
                await asyncio.gather(*clients)

    asyncio.run(run())
    print(f"answers by status: {dict(statuses)}")
    assert not others
    gateway.until_ready()


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


def test_torchserve_stops_and_comes_back(stack: tuple[TorchServeProcess, GatewayProcess]) -> None:
    torchserve, gateway = stack
    image = images.encode(bars(False), "PNG")
    torchserve.stop()
    gateway.until_ready(status=503)
    assert status_of(gateway, "/healthz") == 200
    refused = httpx.post(f"{gateway.url}/predict", content=image, timeout=30, trust_env=False)
    assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
    assert "TorchServe" in gateway.get("/readyz").json()["detail"]
    torchserve.start()
    gateway.until_ready()
    answer = httpx.post(f"{gateway.url}/predict", content=image, timeout=30, trust_env=False)
    assert answer.json()["predictions"][0]["label"] == "vertical"


def test_the_middle_one_of_a_batch_vanishes(gateway: GatewayProcess) -> None:
    pictures = [images.encode(bars(index % 2 == 0), "PNG") for index in range(9)]
    labels = ["horizontal" if index % 2 == 0 else "vertical" for index in range(9)]

    async def run() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=40, trust_env=False) as http:
            headers = {"Content-Type": "image/png"}
            tasks = [asyncio.create_task(http.post("/predict", content=each, headers=headers)) for each in pictures]
            await asyncio.sleep(0)  # all have started
            tasks[4].cancel()
            return await asyncio.gather(*tasks[:4], *tasks[5:])

    for _ in range(20):
        answers = asyncio.run(run())
        assert [answer.json()["predictions"][0]["label"] for answer in answers] == labels[:4] + labels[5:]


def test_the_gateway_stops_cleanly_under_load(torchserve: TorchServeProcess) -> None:
    image = images.encode(bars(True), "PNG")

    async def client(http: httpx.AsyncClient, statuses: list[int]) -> None:
        while True:
            try:
                answer = await http.post("/predict", content=image, headers={"Content-Type": "image/png"})
            except httpx.ConnectError:
                return  # it listens no more
            except (httpx.RemoteProtocolError, httpx.ReadError):
                return  # an idle connection was closed as the request went out; nothing had been promised
            statuses.append(answer.status_code)

    async def run(gateway: GatewayProcess) -> list[int]:
        statuses: list[int] = []
        async with httpx.AsyncClient(base_url=gateway.url, timeout=40, trust_env=False) as http:
            clients = [asyncio.create_task(client(http, statuses)) for _ in range(8)]
            async with asyncio.timeout(60):
                await _until(lambda: len(statuses) >= 40)
                assert gateway.process is not None
                gateway.process.terminate()
                await asyncio.gather(*clients)
        return statuses

    with gateway_over(torchserve) as gateway:
        gateway.until_ready()
        statuses = asyncio.run(run(gateway))
        gateway.stop()
        assert set(statuses) == {200}
        assert "Traceback" not in gateway.log
