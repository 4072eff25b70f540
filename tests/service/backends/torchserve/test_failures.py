"""The table of TorchServe's messages, against a real TorchServe that says each of them, over REST and over gRPC."""

import re
from collections.abc import AsyncIterator, Iterator

import pytest

from service.backends.torchserve.failures import MESSAGES
from service.backends.torchserve.grpc import GrpcBackend
from service.backends.torchserve.management import TorchServeControl
from service.backends.torchserve.rest import RestBackend
from service.domain.backend import BatchOptions, Target
from service.errors.gateway import BackendFailed, BackendUnavailable, WorkerDied
from tests.odd_archive import TARGET, make_odd_store
from tests.torchserve_process import TorchServeProcess

pytestmark = pytest.mark.anyio

IDLE = Target("odd", "1.1")  # registered, with no worker
SECONDS = 60.0


@pytest.fixture(scope="module")
def torchserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeProcess]:
    store = make_odd_store(tmp_path_factory.mktemp("failures") / "store", v1_1="")
    with TorchServeProcess(store) as server:
        for version, num_workers in ((TARGET.version, 1), (IDLE.version, 0)):
            answer = server.register(f"odd-{version}.mar", num_workers)
            assert answer.status_code == 200, answer.text
        yield server


@pytest.fixture(params=["rest", "grpc"])
async def backend(
    request: pytest.FixtureRequest, torchserve: TorchServeProcess
) -> AsyncIterator[RestBackend | GrpcBackend]:
    backend: RestBackend | GrpcBackend
    if request.param == "rest":
        backend = RestBackend("127.0.0.1", torchserve.ports["rest"])
    else:
        backend = GrpcBackend(torchserve.grpc_target)
    await backend.start()
    yield backend
    await backend.close()


CASES: list[tuple[Target, bytes, type[BackendUnavailable | BackendFailed], str]] = [
    (TARGET, b"exit:3", WorkerDied, "Worker died"),
    (TARGET, b"raise:no", BackendFailed, "Prediction failed"),
    (IDLE, b"class:1", BackendUnavailable, "has no worker to serve inference request"),
    (Target("nobody", "1.0"), b"class:1", BackendUnavailable, "Model not found"),
    (Target("odd", "9.0"), b"class:1", BackendUnavailable, "does not exist for model"),
]


@pytest.mark.parametrize(("target", "item", "error", "message"), CASES)
async def test_each_message_is_its_error(
    torchserve: TorchServeProcess,
    backend: RestBackend | GrpcBackend,
    target: Target,
    item: bytes,
    error: type[BackendUnavailable | BackendFailed],
    message: str,
) -> None:
    control = TorchServeControl(torchserve.management_url, load_timeout_seconds=SECONDS, response_timeout_seconds=60)
    await control.start()
    while (await control.survey())[TARGET].num_ready < 1:  # after a death; each look asks TorchServe
        pass
    await control.close()
    with pytest.raises(error, match=re.escape(message)) as raised:
        await backend.predict(target, [item], BatchOptions(top_k=1), SECONDS)
    assert raised.type is error


def test_every_message_of_the_table_is_tried() -> None:
    assert {(message, error) for message, error in MESSAGES} == {(message, error) for *_, error, message in CASES}
