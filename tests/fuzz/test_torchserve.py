"""What answers where TorchServe should: not JSON, other documents, not HTTP, too much."""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from service.backends.torchserve.management import MOST_PAGES, TorchServeControl
from service.backends.torchserve.rest import RestBackend
from service.domain.backend import BatchOptions, Target, VersionStatus
from service.errors.gateway import BackendError
from tests.fuzz.cost import require_short
from tests.fuzz.documents import changed
from tests.fuzz.profile import fuzzed

TARGET = Target("digits", "1.0")
WORKER = {"id": "9000", "status": "READY", "memoryUsage": 5, "gpu": False}
VERSION = {
    "modelName": "digits",
    "modelVersion": "1.0",
    "modelUrl": "digits-1.0.mar",
    "minWorkers": 1,
    "workers": [WORKER],
    "jobQueueStatus": {"remainingCapacity": 100, "pendingRequests": 0},
    "customizedMetadata": {"classes": ["a"]},
}
LISTING = {"models": [{"modelName": "digits", "modelUrl": "digits-1.0.mar"}]}
PREDICTION = {"results": [{"top_k": [[0, 1.0]]}], "timings_ms": {"decode": 1, "compute": 1}}
SECONDS = 5.0


class Server:
    """Answers every connection's requests with the bytes that `answers` has for a path, then closes."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.num_requests = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.num_requests += 1
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            path = head.split()[1].decode().partition("?")[0]
            writer.write(self.answers.get(path, self.answers[""]))
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class Stack:
    """A server that says anything, and both of our clients of it, in one event loop."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.server = Server()
        runner.run(self._start())

    async def _start(self) -> None:
        port = await self.server.start()
        url = f"http://127.0.0.1:{port}"
        self._control = TorchServeControl(url, load_timeout_seconds=SECONDS, response_timeout_seconds=5)
        self._backend = RestBackend("127.0.0.1", port)
        await self._control.start()

    def survey(self) -> dict[Target, VersionStatus]:
        return dict(self._runner.run(self._control.survey()))

    def contract(self) -> Any:
        return self._runner.run(self._control.contract(TARGET))

    def predict(self) -> Any:
        return self._runner.run(self._backend.predict(TARGET, [b"x"], BatchOptions(1), SECONDS))

    def close(self) -> None:
        async def close() -> None:
            await self._control.close()
            await self._backend.close()
            await self.server.close()

        self._runner.run(close())


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with asyncio.Runner() as runner:
        made = Stack(runner)
        yield made
        made.close()


def answer(body: bytes, status: int = 200, headers: Sequence[str] = ()) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


STATUSES = st.sampled_from([200, 200, 200, 204, 302, 404, 409, 500, 503])
HEADERS = st.sampled_from(
    [
        (),
        *(("Content-Encoding: gzip",), ("Content-Type: text/plain; charset=undefined",)),
        *(("Content-Type: text/plain; charset=base64",), ("Set-Cookie: \xe9=;;",), ("Location: http://[",)),
    ]
)


def anything(document: Any) -> st.SearchStrategy[bytes]:
    """Return whole answers with something of the document in another form, or something around it."""
    return st.builds(answer, changed(document) | st.binary(max_size=20), STATUSES, HEADERS)


def with_a_part_replaced(data: bytes) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda place, part: data[:place] + part + data[place + len(part) :],
        st.integers(0, len(data)),
        st.binary(min_size=1, max_size=4) | st.sampled_from([b"\r\n", b"\r\n\r\n", b"HTTP/1.1 100 X\r\n\r\n", b""]),
    )


# What is no such document, is nested too deeply, or says that it is compressed.
@fuzzed(70)
@example(listing=answer(b"{}"), versions=answer(b"[]"))
@example(listing=answer(json.dumps(LISTING).encode()), versions=answer(b'[{"workers": 1}]'))
@example(listing=answer(b"[" * 100_000), versions=answer(b"[]"))
@example(listing=answer(b"x", headers=("Content-Encoding: gzip",)), versions=answer(b"[]"))
@example(listing=answer(b'{"models": [{"modelName": "a\\n%s"}]}' % (b"x" * 70_000)), versions=answer(b"[]"))
@example(listing=answer(b"x", 500, ("Content-Type: text/plain; charset=undefined",)), versions=answer(b"[]"))
@given(
    listing=st.just(answer(json.dumps(LISTING).encode())) | anything(LISTING),
    versions=anything([VERSION]) | with_a_part_replaced(answer(json.dumps([VERSION]).encode())),
)
def test_a_survey_is_read_or_an_error_of_the_backend(stack: Stack, listing: bytes, versions: bytes) -> None:
    stack.server.answers = {"/models": listing, "": versions}
    try:
        survey = stack.survey()
    except BackendError as error:
        require_short(error, 2000)
        return
    for target, status in survey.items():
        f"{target}{status.file}".encode()
        assert status.num_workers_wanted >= 0
        assert status.num_pending >= 0
        assert 0 <= status.num_ready <= sum(status.worker_states.values())
        assert all(number > 0 for number in status.worker_memory_bytes)


def test_a_list_of_models_without_an_end_is_an_error_of_the_backend(stack: Stack) -> None:
    stack.server.answers = {"": answer(json.dumps({**LISTING, "nextPageToken": "1"}).encode())}
    before = stack.server.num_requests
    with pytest.raises(BackendError, match="pages"):
        stack.survey()
    assert stack.server.num_requests - before == MOST_PAGES


@fuzzed(40)
@example(described=answer(b"[]"))
@example(described=answer(b"{}"))
@given(described=anything([VERSION]))
def test_a_contract_is_a_document_or_an_error_of_the_backend(stack: Stack, described: bytes) -> None:
    stack.server.answers = {"": described}
    try:
        contract = stack.contract()
    except BackendError as error:
        require_short(error, 2000)
        return
    assert isinstance(contract, dict)


GOOD = answer(json.dumps(PREDICTION).encode())


@fuzzed(70)
@example(said=b"")
@example(said=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n")
@example(said=b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nx")
@given(said=anything(PREDICTION) | with_a_part_replaced(GOOD) | st.binary(max_size=50))
def test_a_prediction_is_read_or_an_error_of_the_backend(stack: Stack, said: bytes) -> None:
    stack.server.answers = {"": said}
    try:
        answered = stack.predict()
    except BackendError as error:
        require_short(error, 2000)
        return
    assert isinstance(answered.results, list)
