"""A real TorchServe for tests: started by deploy/torchserve.sh on free ports, always stopped, its log at hand."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = ROOT / "deploy" / "torchserve.sh"
PORTS = ("rest", "management", "metrics", "grpc", "grpc_management")


def free_ports(num_ports: int) -> list[int]:
    """Ports that nobody listens on now, outside the range (32768 and up) that outgoing connections draw theirs from."""
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < num_ports:
            each = socket.socket()
            try:
                each.bind(("127.0.0.1", random.SystemRandom().randrange(10_240, 32_768)))
            except OSError:  # taken
                each.close()
            else:
                sockets.append(each)
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class TorchServeProcess:
    """One TorchServe over a model store; a context manager that starts and stops it.

    `kill()` ends it as a crash would, `stop()` as a process manager does.
    """

    def __init__(
        self, model_store: Path, ports: dict[str, int] | None = None, env: dict[str, str] | None = None
    ) -> None:
        self.model_store = model_store
        self.ports = ports or dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.env = env or {}
        self.process: subprocess.Popen[bytes] | None = None
        self.folder: Path | None = None

    @property
    def rest_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['rest']}"

    @property
    def management_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['management']}"

    @property
    def management_socket(self) -> Path | None:
        """The socket that takes the place of the management port, if it was asked for."""
        path = self.env.get("TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET")
        return None if path is None else Path(path)

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['metrics']}"

    @property
    def grpc_target(self) -> str:
        return f"127.0.0.1:{self.ports['grpc']}"

    @property
    def log_path(self) -> Path:
        """The file it prints into."""
        assert self.folder is not None
        return self.folder / "log"

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self.log_path.read_text(errors="replace")

    @property
    def temporary(self) -> Path:
        """Its TMPDIR; empty when it has cleaned up."""
        assert self.folder is not None
        return self.folder / "tmp"

    def launch(self) -> None:
        """Start the launcher and return at once."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="ts-"))  # short, for the sake of unix sockets' names
        self.temporary.mkdir(exist_ok=True)
        ports = {f"TORCHGATE_TORCHSERVE_{name.upper()}_PORT": str(port) for name, port in self.ports.items()}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [str(LAUNCHER)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "TMPDIR": str(self.temporary),
                    "TORCHGATE_MODEL_STORE": str(self.model_store),
                    **ports,
                    **self.env,
                },
                start_new_session=True,
            )

    def start(self, timeout_seconds: float = 60) -> None:
        """Launch it and return when it answers; RuntimeError with the log's tail when it does not."""
        self.launch()
        assert self.process is not None
        deadline = time.monotonic() + timeout_seconds
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                state = f"exit status {self.process.returncode}"
                self.kill()
                raise RuntimeError(f"TorchServe did not start ({state}):\n{self.log[-4000:]}")
            time.sleep(0.1)

    def answers(self) -> bool:
        """Tell whether /ping answers and the ports opened after it are there, too."""
        try:
            httpx.get(f"{self.rest_url}/ping", timeout=5)
            for name in PORTS:
                if name != "management" or self.management_socket is None:
                    socket.create_connection(("127.0.0.1", self.ports[name]), timeout=5).close()
        except (httpx.TransportError, OSError):
            return False
        return True

    def register(self, url: str, num_workers: int = 1) -> httpx.Response:
        """Register an archive and wait until its workers have loaded it."""
        parameters: dict[str, str | int] = {"url": url, "initial_workers": num_workers, "synchronous": "true"}
        return httpx.post(f"{self.management_url}/models", params=parameters, timeout=120)

    def family(self) -> list[psutil.Process]:
        """The launcher, Java and the workers, as they are now."""
        assert self.process is not None
        try:
            launcher = psutil.Process(self.process.pid)
            return [launcher, *launcher.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def java(self) -> psutil.Process:
        """The Java process."""
        return next(process for process in self.family() if "java" in Path(process.name()).name)

    def workers(self) -> list[psutil.Process]:
        """The Python workers."""
        found = []
        for process in self.family():
            try:
                if any(part.endswith("model_service_worker.py") for part in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def stop(self, timeout_seconds: float = 40) -> int:
        """Ask it to stop and return its exit status; it is killed when it takes too long."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the launcher, Java and the workers with SIGKILL and reap the launcher."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            if error is not None:
                print(f"TorchServe's log:\n{self.log[-4000:]}")
            self.remove()

    def remove(self) -> None:
        """Delete its log and temporary folder."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


def wait_until(condition: Callable[[], bool], timeout_seconds: float = 30) -> None:
    """Return once `condition` holds."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
