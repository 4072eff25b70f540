"""TorchServe or the way to it fails: every request gets an honest answer in time, and all comes back by itself."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import mount_for, predict, recovery, until
from tests.gateway import GatewayProcess
from tests.odd_archive import make_odd_store
from tests.relay import Relay, running_relay
from tests.stack import gateway_over
from tests.torchserve_process import TorchServeProcess

TIMEOUT = {"TORCHGATE_BACKEND_TIMEOUT_MS": "2000", "TORCHGATE_WORKERS_PER_VERSION": "1"}
NAME = "model-server.test"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeProcess]:
    with TorchServeProcess(make_odd_store(tmp_path_factory.mktemp("faults") / "store")) as process:
        yield process


@pytest.fixture(params=["grpc", "rest"])
def gateway(request: pytest.FixtureRequest, server: TorchServeProcess) -> Iterator[GatewayProcess]:
    with gateway_over(server, TORCHGATE_BACKEND=request.param, **TIMEOUT) as process:
        process.until_every_version_is_ready()
        yield process


def is_right(gateway: GatewayProcess) -> bool:
    answer = predict(gateway)
    assert answer.status_code in {200, 429, 503, 504}, answer.text
    return answer.status_code == 200 and bool(answer.json()["predictions"][0]["label"] == "one")


def test_torchserve_hangs(server: TorchServeProcess, gateway: GatewayProcess) -> None:
    stopped = server.family()
    for each in stopped:
        each.suspend()
    try:
        answer = predict(gateway)
        assert (answer.status_code, answer.json()["code"]) == (504, "backend_timeout")
        gateway.until_ready(status=503)
        assert gateway.get("/healthz").status_code == 200
        assert predict(gateway).status_code in {503, 504}
    finally:
        for each in reversed(stopped):
            each.resume()
    with recovery("TorchServe hangs"):
        until(lambda: is_right(gateway), gateway)


def test_torchserve_is_killed(server: TorchServeProcess, gateway: GatewayProcess) -> None:
    server.kill()
    assert predict(gateway).status_code == 503
    gateway.until_ready(status=503)
    server.start()
    with recovery("TorchServe is killed, from its answer to /ping"):
        until(lambda: is_right(gateway), gateway)


@pytest.mark.parametrize("backend", ["grpc", "rest"])
def test_dns_is_away(server: TorchServeProcess, tmp_path: Path, backend: str) -> None:
    hosts, resolver = tmp_path / "hosts", tmp_path / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")  # nobody there
    hosts.write_text("127.0.0.1 localhost\n")
    gateway = gateway_over(server, TORCHGATE_BACKEND=backend, TORCHGATE_TORCHSERVE_HOST=NAME, **TIMEOUT)
    mount_for(gateway, f"--bind {hosts} /etc/hosts", f"--bind {resolver} /etc/resolv.conf")
    with gateway:
        gateway.until_ready(status=503)
        answer = predict(gateway)
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        with recovery("DNS is away at the start"):
            with hosts.open("a") as file:
                file.write(f"127.0.0.1 {NAME}\n")
            until(lambda: is_right(gateway), gateway)
        hosts.write_text("127.0.0.1 localhost\n")
        for _ in range(20):  # the connections that there are need no name
            assert is_right(gateway)
        assert gateway.get("/readyz").status_code == 200


@pytest.mark.parametrize("backend", ["grpc", "rest"])
def test_the_link_is_slow_then_silent_then_cut(server: TorchServeProcess, backend: str) -> None:
    with contextlib.ExitStack() as stack:
        links: dict[str, Relay] = {}
        for name in ("grpc", "rest", "management"):
            links[name] = stack.enter_context(running_relay("127.0.0.1", server.ports[name]))
        ports = {f"TORCHGATE_TORCHSERVE_{name.upper()}_PORT": str(link.port) for name, link in links.items()}
        gateway = gateway_over(server, TORCHGATE_BACKEND=backend, **TIMEOUT)
        gateway.env |= ports
        stack.enter_context(gateway)
        gateway.until_every_version_is_ready()
        for link in links.values():
            link.delay_seconds = 0.1
        answer = predict(gateway)
        assert answer.status_code == 200
        assert answer.elapsed.total_seconds() >= 0.2  # there and back
        for link in links.values():
            link.delay_seconds = 0
        with recovery(f"a silent link, {backend}"):  # what was sent is swallowed, and no end is told
            for link in links.values():
                link.swallow()
            until(lambda: is_right(gateway), gateway)
        with recovery(f"a cut link, {backend}"):
            for link in links.values():
                link.cut()
            until(lambda: is_right(gateway), gateway)
