"""The network loses every twentieth packet: TCP sends them again, so all is slower and nothing is lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.faults import losing, own_network, predict, put_traffic, recovery, traffic, until
from tests.gateway import GatewayProcess
from tests.odd_archive import make_odd_store
from tests.postgres import running_postgres
from tests.stack import gateway_of_workers, gateway_over
from tests.torchserve_process import TorchServeProcess

pytestmark = pytest.mark.system

PERCENT = 5
NUM_REQUESTS = 50
ALONE = {"TORCHGATE_WORKERS_PER_VERSION": "1"}


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    with own_network():
        yield


@pytest.fixture(scope="module")
def server(network: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeProcess]:
    with TorchServeProcess(make_odd_store(tmp_path_factory.mktemp("loss") / "store")) as process:
        yield process


def port(url: str) -> int:
    found = urlsplit(url).port
    assert found is not None
    return found


def every_answer_is_right(gateway: GatewayProcess) -> None:
    with ThreadPoolExecutor(16) as clients:
        answers = list(
            clients.map(lambda number: predict(gateway, f"class:{number % 4}".encode()), range(NUM_REQUESTS))
        )
    assert {answer.status_code for answer in answers} == {200}, {answer.text for answer in answers if answer.is_error}
    labels = [answer.json()["predictions"][0]["label"] for answer in answers]
    assert labels == [("zero", "one", "two", "three")[number % 4] for number in range(NUM_REQUESTS)]


def test_packets_are_lost_on_the_way_to_clients_and_to_the_database(tmp_path: Path) -> None:
    store = make_odd_store(tmp_path / "store", v1_1="")
    with running_postgres() as url:
        options = {**ALONE, "TORCHGATE_MODEL_STORE_POLICY": "all", "TORCHGATE_DATABASE_URL": url}
        with gateway_of_workers(store, **options) as gateway:
            gateway.until_every_version_is_ready()
            assert put_traffic(gateway, {"1.0": 50, "1.1": 50}).status_code == 200
            accepted = {"1.0": 50.0, "1.1": 50.0}
            with losing(PERCENT, port(gateway.url), port(url)):
                every_answer_is_right(gateway)
                for percent in range(1, 5):
                    wanted = {"1.0": float(percent), "1.1": 100.0 - percent}
                    if (answer := put_traffic(gateway, wanted)).status_code == 200:
                        accepted = wanted
                    else:
                        assert (answer.status_code, answer.json()["code"]) == (503, "state_unavailable")
                assert gateway.get("/readyz").status_code == 200
            assert traffic(gateway) == accepted
            with recovery("packets lost between gateway, clients and database"):
                until(lambda: put_traffic(gateway, {"1.0": 100}).status_code == 200, gateway)


@pytest.mark.parametrize("backend", ["grpc", "rest"])
def test_packets_are_lost_on_the_way_to_torchserve(server: TorchServeProcess, backend: str) -> None:
    with gateway_over(server, TORCHGATE_BACKEND=backend, **ALONE) as gateway:
        gateway.until_every_version_is_ready()
        with losing(PERCENT, server.ports[backend]):
            every_answer_is_right(gateway)
            assert gateway.get("/readyz").status_code == 200
        with recovery(f"packets lost on the way to TorchServe, {backend}"):
            until(lambda: predict(gateway).status_code == 200, gateway)
