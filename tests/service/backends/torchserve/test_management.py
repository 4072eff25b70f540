"""A TorchServe that interrupts itself while it unloads, as busy ones now and then do; it is played here."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest

from service.backends.torchserve.management import TorchServeControl
from service.domain.backend import Target
from service.errors.gateway import BackendFailed
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import VersionMetrics

pytestmark = pytest.mark.anyio

TARGET = Target("shapes", "1.0")
VERSION = {"modelName": "shapes", "modelVersion": "1.0", "minWorkers": 1, "workers": []}
MESSAGE = "Interrupted while cleaning resources: shapes"
INTERRUPTED = {"code": 500, "type": "InternalServerException", "message": MESSAGE}


@contextmanager
def management(
    num_interruptions: int, *, keeps_it: bool, workers: Sequence[Mapping[str, object]] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Answer the management API as TorchServe does; yield its address and the methods that were called."""
    loaded, methods = [{**VERSION, "workers": workers, "jobQueueStatus": {"pendingRequests": 0}}], []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            names = [{"modelName": each["modelName"]} for each in loaded]
            self.answer(200, {"models": names} if self.path.startswith("/models?") else loaded)

        def do_DELETE(self) -> None:
            methods.append("DELETE")
            is_interrupted = len(methods) <= num_interruptions
            if not is_interrupted or not keeps_it:
                loaded.clear()
            self.answer(*((500, INTERRUPTED) if is_interrupted else (200, {"status": "unregistered"})))

        def answer(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", methods
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("num_interruptions", "keeps_it", "num_calls"), [(0, True, 1), (2, True, 3), (1, False, 1)])
async def test_an_interrupted_unload_is_repeated_where_the_version_is_still_there(
    num_interruptions: int, keeps_it: bool, num_calls: int
) -> None:
    with management(num_interruptions, keeps_it=keeps_it) as (url, methods):
        control = TorchServeControl(url, load_timeout_seconds=5, response_timeout_seconds=5)
        await control.start()
        await control.unload(TARGET)
        assert await control.survey() == {}
        await control.close()
    assert len(methods) == num_calls


async def test_an_unload_that_never_works_is_told() -> None:
    with management(99, keeps_it=True) as (url, methods):
        control = TorchServeControl(url, load_timeout_seconds=5, response_timeout_seconds=5)
        await control.start()
        with pytest.raises(BackendFailed, match="Interrupted"):
            await control.unload(TARGET)
        await control.close()
    assert len(methods) == 3


async def test_the_memory_of_workers_is_told_where_torchserve_has_looked() -> None:
    worker = {"status": "READY", "gpu": False}
    workers = [{**worker, "id": "10000", "memoryUsage": 2}, {**worker, "id": "9000", "memoryUsage": 1}]
    unseen = {**worker, "id": "10001", "memoryUsage": 0}
    with management(0, keeps_it=True, workers=[*workers, unseen]) as (url, _):
        control = TorchServeControl(url, load_timeout_seconds=5, response_timeout_seconds=5)
        await control.start()
        status = (await control.survey())[TARGET]
        await control.close()
    assert (list(status.worker_memory_bytes), status.num_ready) == ([1, 2], 3)


def test_the_memory_of_workers_that_are_gone_is_not_shown() -> None:
    metrics = Metrics()
    version = VersionMetrics(metrics, TARGET)

    def shown() -> list[float]:
        return [sample.value for family in metrics.worker_memory.collect() for sample in family.samples]

    version.show_memory([5, 6])
    assert shown() == [5, 6]
    version.show_memory([7])
    assert shown() == [7]
    version.show_memory([])
    assert shown() == []


async def test_a_model_that_goes_between_list_and_describe_is_absent() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/models":
            return said(200, {"models": [{"modelName": "gone"}, {"modelName": "shapes"}]})
        if request.url.path == "/models/gone/all":
            return said(404, {"message": "Model not found: gone"})
        return said(200, [{**VERSION, "jobQueueStatus": {"pendingRequests": 0}}])

    def said(status: int, document: object) -> httpx.Response:
        return httpx.Response(status, stream=httpx.ByteStream(json.dumps(document).encode()))

    control = TorchServeControl("http://torchserve", load_timeout_seconds=1, response_timeout_seconds=1)
    await control.start()
    await control._client.aclose()
    control._client = httpx.AsyncClient(base_url="http://torchserve", transport=httpx.MockTransport(answer))
    assert set(await control.survey()) == {TARGET}
    await control.close()
