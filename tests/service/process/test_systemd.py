"""systemd's protocols, spoken by the test as systemd speaks them."""

import contextlib
import fcntl
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway import GatewayProcess
from tests.stores import make_store

# systemd puts the sockets at descriptor 3 and after, and names the process that they are meant for once it exists.
ACTIVATE = """
import os, sys
for index, number in enumerate(map(int, sys.argv[1:])):
    os.dup2(number, 3 + index)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "tests.fake_gateway", "serve"])
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    make_store(tmp_path / "store", (("digits", "1.0", "fp32"),))
    return {"TORCHGATE_MODEL_STORE": str(tmp_path / "store"), "TORCHGATE_BACKEND": "workers"}


@contextlib.contextmanager
def activated(env: dict[str, str], *sockets: socket.socket, names: str) -> Iterator[GatewayProcess]:
    """Run a gateway that systemd gives these sockets."""
    process = GatewayProcess(**env, LISTEN_FDS=str(len(sockets)), LISTEN_FDNAMES=names)
    process.command = [sys.executable, "-c", ACTIVATE, *(str(each.fileno()) for each in sockets)]
    process.pass_fds = tuple(each.fileno() for each in sockets)
    process.launch()
    try:
        yield process
    finally:
        process.__exit__(None, None, None)


def high(server: socket.socket) -> socket.socket:
    """Return the socket under a number that is none of those that systemd uses."""
    with server:
        return socket.socket(fileno=fcntl.fcntl(server, fcntl.F_DUPFD, 100))


@pytest.mark.parametrize("name", ["http", "torchgate.socket"])
def test_a_request_that_was_there_before_the_gateway_is_answered(env: dict[str, str], name: str) -> None:
    with high(socket.create_server(("127.0.0.1", 0))) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            client.settimeout(30)
            with activated(env, server, names=name) as gateway:
                assert client.recv(1000).startswith(b"HTTP/1.1 200 "), gateway.log
                line = gateway.until_logged(lambda record: "port" in record)
                assert (line["host"], line["port"]) == address


@pytest.mark.parametrize(
    ("names", "kind", "reason"),
    [
        ("http:http", socket.SOCK_STREAM, "FileDescriptorName="),
        ("http:strange", socket.SOCK_STREAM, "FileDescriptorName="),
        ("http", socket.SOCK_DGRAM, "ListenStream="),
    ],
)
def test_sockets_of_no_use_are_refused(env: dict[str, str], names: str, kind: socket.SocketKind, reason: str) -> None:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(high(socket.socket(type=kind))) for _ in names.split(":")]
        with activated(env, *sockets, names=names) as gateway:
            assert gateway.process is not None
            assert gateway.process.wait(30) == 2
            assert reason in gateway.log
            assert "Traceback" not in gateway.log


def test_variables_for_another_process_are_ignored(env: dict[str, str]) -> None:
    with GatewayProcess(**env, LISTEN_FDS="1", LISTEN_PID="1") as gateway:
        assert gateway.url


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_supervisor_hears_how_it_is(env: dict[str, str], is_abstract: bool) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="n-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor,
    ):
        path = f"{folder}/notify"
        supervisor.bind(f"\0{path}" if is_abstract else path)
        supervisor.settimeout(30)
        address = f"@{path}" if is_abstract else path
        with GatewayProcess(**env, NOTIFY_SOCKET=address, WATCHDOG_USEC="200000") as gateway:
            heard: list[bytes] = []
            while heard.count(b"WATCHDOG=1") < 3 or b"READY=1" not in heard:
                heard.append(supervisor.recv(1000))
            gateway.stop()
            while heard[-1] != b"STOPPING=1":
                heard.append(supervisor.recv(1000))
            assert heard.count(b"READY=1") == 1
