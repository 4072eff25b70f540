"""Gateways for tests: one inside the test's event loop with a fake behind it, and one as a process of its own."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import uvicorn

from service.app import create_app
from service.config.settings import Settings
from service.domain.backend import Target
from service.http.server.protocol import BoundedHttpProtocol
from service.http.server.server import GatewayServer
from service.http.tls.certificates import open_certificates
from service.process.entrance import OwnSockets
from service.process.lifecycle import Lifecycle
from service.process.listening import BACKLOG, PUBLIC, ListeningSocket
from service.process.systemd import Supervisor
from tests.fake_backend import FakeBackend, FakeControl
from tests.stores import make_store
from tests.whole_requests import WholeRequests

T = TypeVar("T")
TOKEN = "correct-horse-of-the-tests"
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}
NO_CREDENTIALS = {"Authorization": ""}  # instead of the rig's own: it leaves no trace of credentials that were right
ONE_MODEL = (("digits", "1.0", "fp32"), ("digits", "1.0", "int8-dynamic"))


@dataclass
class Rig:
    """A gateway that runs inside the test, the fake behind it and a client in front."""

    url: str
    port: int
    client: httpx.AsyncClient
    backend: FakeBackend
    control: FakeControl
    server: GatewayServer

    async def predict(self, body: bytes, **request: Any) -> httpx.Response:
        """Send one image."""
        headers = {"Content-Type": "image/png", **request.pop("headers", {})}
        return await self.client.post("/predict", content=body, headers=headers, **request)

    async def until_ready(self, status: int = 200) -> httpx.Response:
        """Return /readyz's answer once it has this status."""
        async with asyncio.timeout(10):
            while (answer := await self.client.get("/readyz", headers=NO_CREDENTIALS)).status_code != status:
                await asyncio.sleep(0.01)
        return answer

    async def until_reason(self, text: str) -> dict[str, Any]:
        """Return /readyz's problem once it names `text`."""
        async with asyncio.timeout(10):
            while True:
                answer = await self.client.get("/readyz")
                if answer.status_code == 503 and text in answer.json()["detail"]:
                    document: dict[str, Any] = answer.json()
                    return document
                await asyncio.sleep(0.01)

    async def states(self) -> dict[str, str]:
        """Return the state of each version of digits."""
        document = (await self.client.get("/models/digits")).json()
        return {version["version"]: version["state"] for version in document.get("versions", [])}

    async def until_state(self, version: str, state: str) -> None:
        """Return once a version of digits has this state."""
        async with asyncio.timeout(10):
            while (await self.states()).get(version) != state:
                await asyncio.sleep(0.01)

    async def until_nothing_is_loading(self) -> None:
        """Return once every version of every model is ready, or has failed to be."""
        async with asyncio.timeout(10):
            while True:
                answer = await self.client.get("/readyz", headers=NO_CREDENTIALS)
                if not re.search("is (waiting|loading)", answer.json()["reason"]):
                    return
                await asyncio.sleep(0.01)

    async def until_every_version_is_ready(self) -> None:
        """Return once all versions of digits are ready."""
        async with asyncio.timeout(10):
            while set((await self.states()).values()) != {"ready"}:
                await asyncio.sleep(0.01)

    async def fill_the_slot(self) -> "asyncio.Task[httpx.Response]":
        """Occupy the version's only slot with a batch that does not end before the backend's `release`."""
        self.backend.hold()
        num_batches = len(self.backend.batches)
        task = asyncio.create_task(self.predict(b"class:0"))
        await self.backend.batches_arrived(num_batches + 1)
        return task

    async def until_queued(self, num_images: int) -> None:
        """Return once so many images of the default version wait."""
        await self.until("torchgate_queue_depth", num_images, version="1.0")

    async def until(self, metric: str, value: float, **labels: str) -> None:
        """Return once a sample has this value."""
        async with asyncio.timeout(10):
            while await self.metric(metric, **labels) != value:
                await asyncio.sleep(0.01)

    async def metric(self, name: str, **labels: str) -> float:
        """Return one sample from /metrics; 0 if it is not there."""
        text = (await self.client.get("/metrics")).text
        for line in re.findall(rf"^{name}(?:{{.*}})? \S+$", text, re.MULTILINE):
            if labels.items() <= dict(re.findall(r'(\w+)="([^"]*)"', line)).items():
                return float(line.rpartition(" ")[2])
        return 0.0


@contextlib.asynccontextmanager
async def running_gateway(
    tmp_path: Path,
    versions: tuple[tuple[str, str, str], ...] = ONE_MODEL,
    *,
    prepare: Callable[[FakeBackend, FakeControl], None] | None = None,
    wait_until_ready: bool = True,
    http: type[asyncio.Protocol] = BoundedHttpProtocol,
    control: FakeControl | None = None,
    verify: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[Rig]:
    """Run a gateway over the fake on a free port of this event loop; `verify` makes the rig's client one of TLS."""
    store = options.pop("model_store", tmp_path / "store")
    contracts: dict[Target, dict[str, Any]] = make_store(store, versions) if versions else {}
    backend, control = FakeBackend(), control or FakeControl(contracts)
    if prepare is not None:
        prepare(backend, control)
    options = {"health_interval_seconds": 0.02, "drain_seconds": 2, "workers_per_version": 1, **options}
    # Requests that are written by hand are for anybody.
    settings = Settings(model_store=store, **{"admin_token": TOKEN, "allowed_hosts": "*", **options})
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        port = listener.getsockname()[1]
        lifecycle = Lifecycle()
        certificates = open_certificates(settings.tls_files)
        config = uvicorn.Config(
            create_app(settings, backend, control, lifecycle, certificates=certificates),
            http=http,
            ws="none",
            lifespan="on",
            log_config=None,
            ssl_context_factory=(lambda *_: certificates.context) if certificates.context is not None else None,
            proxy_headers=False,  # as in run_server: around the application it would hide the way past ASGI
        )
        entrance = OwnSockets([ListeningSocket(PUBLIC, listener)])
        server = GatewayServer(config, settings, entrance, lifecycle, Supervisor({}))
        task = asyncio.create_task(server._serve())
        url = f"{'http' if verify is None else 'https'}://127.0.0.1:{port}"
        transport = WholeRequests() if verify is None else httpx.AsyncHTTPTransport(verify=verify, trust_env=False)
        try:
            async with httpx.AsyncClient(
                base_url=url, timeout=20, transport=transport, headers=AUTHORIZATION
            ) as client:
                rig = Rig(url, port, client, backend, control, server)
                if wait_until_ready:
                    await rig.until_ready()
                    await rig.until_nothing_is_loading()
                yield rig
        finally:
            backend.release()
            server.should_exit = True
            await asyncio.wait_for(task, 20)


class GatewayProcess:
    """`torchgate serve` as a user runs it, on a free port; a context manager that starts and stops it."""

    def __init__(self, **env: str) -> None:
        self.env = {"TORCHGATE_PORT": "0", "TORCHGATE_ADMIN_TOKEN": TOKEN, **env}
        self.verify: ssl.SSLContext | bool = False  # what its certificate is checked with
        self.command = [sys.executable, "-m", "service", "serve"]
        self.pass_fds: tuple[int, ...] = ()
        self.process: subprocess.Popen[bytes] | None = None
        self.output: int | None = None  # descriptor that it prints to instead of its log file
        self._log = tempfile.NamedTemporaryFile(prefix="gateway-", suffix=".log")  # noqa: SIM115 - closed by stop
        self.url = ""

    @property
    def admin_url(self) -> str:
        """Where its admin listener is."""
        record = self.until_logged(lambda record: record.get("listener") == "admin")
        return f"{record['scheme']}://{record['host']}:{record['port']}"

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return Path(self._log.name).read_text(errors="replace")

    def records(self) -> list[dict[str, Any]]:
        """Return its log lines."""
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def until_logged(self, is_it: Callable[[dict[str, Any]], bool], timeout_seconds: float = 20) -> dict[str, Any]:
        """Return the first such log line once it is there: a thread writes them, so answers may come before."""
        return self._wait(lambda: next(filter(is_it, self.records()), None), timeout_seconds, "log that line")

    def start(self, timeout_seconds: float = 20) -> None:
        """Return once it listens."""
        self.launch()
        self.url = self._wait(self._find_url, timeout_seconds, "listen")

    def launch(self) -> None:
        """Start it without waiting until it listens."""
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._log if self.output is None else self.output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self.env},
            start_new_session=True,
            pass_fds=self.pass_fds,
        )

    def _find_url(self) -> str | None:
        for record in self.records():
            if "port" in record:
                return f"{record['scheme']}://{record['host']}:{record['port']}"
        return None

    def get(self, path: str) -> httpx.Response:
        """Return the answer to a reader's GET on a new connection."""
        return httpx.get(f"{self.url}{path}", headers=AUTHORIZATION, timeout=5, trust_env=False, verify=self.verify)

    def until_ready(self, timeout_seconds: float = 120, status: int = 200) -> None:
        """Return once /readyz has this status."""

        def is_there() -> bool:
            try:
                return self.get("/readyz").status_code == status
            except httpx.TransportError:
                return False

        self._wait(lambda: is_there() or None, timeout_seconds, f"answer /readyz with {status}")

    def until_every_version_is_ready(self, timeout_seconds: float = 120) -> None:
        """Return once /readyz is 200 and waits for nothing."""

        def all_ready() -> bool:
            try:
                answer = self.get("/readyz")
            except httpx.TransportError:
                return False
            return answer.status_code == 200 and not answer.json()["reason"]

        self._wait(lambda: all_ready() or None, timeout_seconds, "get every version ready")

    def stop(self, timeout_seconds: float = 40) -> int:
        """Send SIGTERM and return the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def _wait(self, look: Callable[[], T | None], timeout_seconds: float, what: str) -> T:
        assert self.process is not None
        deadline = time.monotonic() + timeout_seconds
        while (found := look()) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"the gateway did not {what} (exit status {self.process.poll()}):\n{self.log[-4000:]}"
                )
            time.sleep(0.02)
        return found

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._log.close()
