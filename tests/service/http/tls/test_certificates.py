"""TLS on a real gateway: whom it shows which certificate, and what a change of the files does."""

import asyncio
import contextlib
import http.client
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from tests.certificates import Files, replace, serial_in
from tests.gateway import GatewayProcess
from tests.service.test_main import torchgate
from tests.torchserve_process import wait_until


def serial_shown(gateway: GatewayProcess, trust: ssl.SSLContext, name: str | None = None) -> int:
    """Return the serial number of the certificate that a new connection gets."""
    host, port = gateway.url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        trust.wrap_socket(plain, server_hostname=name or host) as wrapped,
    ):
        found = wrapped.getpeercert()
        assert found is not None
        return int(str(found["serialNumber"]), 16)


def reload(gateway: GatewayProcess) -> None:
    """Have the files read now; by itself the gateway looks once a second."""
    assert gateway.process is not None
    gateway.process.send_signal(signal.SIGHUP)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path, trustme.CA())
    made.issue()
    return made


@contextlib.contextmanager
def gateway_of(files: Files, **env: str) -> Iterator[GatewayProcess]:
    store = files.folder / "store"
    store.mkdir()
    gateway = GatewayProcess(TORCHGATE_MODEL_STORE=str(store), **files.env, **env)
    gateway.verify = files.trust
    with gateway:
        yield gateway


def metric(gateway: GatewayProcess, name: str) -> float:
    (line,) = [line for line in gateway.get("/metrics").text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def test_a_changed_certificate_is_taken_and_no_connection_is_dropped(files: Files) -> None:
    first = serial_in(files.certificate.read_bytes())
    with gateway_of(files) as gateway:
        assert gateway.url.startswith("https://")
        kept = http.client.HTTPSConnection(gateway.url.removeprefix("https://"), timeout=10, context=files.trust)
        kept.request("GET", "/healthz")
        assert b"ok" in kept.getresponse().read()
        held = kept.sock
        assert serial_shown(gateway, files.trust) == first
        second = files.issue(days=30)
        wait_until(lambda: serial_shown(gateway, files.trust) == second, 20)
        assert serial_shown(gateway, files.trust, name="gateway.test") == second
        days_left = (metric(gateway, "torchgate_tls_certificate_expiry_timestamp_seconds") - time.time()) / 86400
        assert 29 < days_left < 31
        kept.request("GET", "/healthz")
        assert b"ok" in kept.getresponse().read()
        assert kept.sock is held
        kept.close()


def test_files_that_cannot_be_used_change_nothing_and_are_told(files: Files) -> None:
    first = serial_in(files.certificate.read_bytes())
    with gateway_of(files) as gateway:
        good = files.certificate.read_bytes()
        assert metric(gateway, "torchgate_tls_files_broken") == 0
        replace(files.certificate, good[: len(good) // 2])
        reload(gateway)
        wait_until(lambda: metric(gateway, "torchgate_tls_files_broken") == 1, 20)
        assert serial_shown(gateway, files.trust) == first
        line = gateway.until_logged(lambda record: record["level"] == "ERROR")
        assert str(files.certificate) in line["message"]
        assert "Fix the files" in line["message"]
        replace(files.certificate, good)
        reload(gateway)
        wait_until(lambda: metric(gateway, "torchgate_tls_files_broken") == 0, 20)
        other = trustme.CA().issue_cert("127.0.0.1")
        replace(files.key, other.private_key_pem.bytes())  # a key that is not the certificate's
        reload(gateway)
        wait_until(lambda: metric(gateway, "torchgate_tls_files_broken") == 1, 20)
        assert serial_shown(gateway, files.trust) == first
        second = files.issue()
        reload(gateway)
        wait_until(lambda: serial_shown(gateway, files.trust) == second, 20)
        assert metric(gateway, "torchgate_tls_files_broken") == 0


def test_sighup_has_the_files_read(files: Files) -> None:
    with gateway_of(files) as gateway:
        gateway.until_ready(status=503)
        assert not any("new connections get" in record["message"] for record in gateway.records())
        reload(gateway)  # nothing has changed, so that nothing but the signal does it
        wait_until(lambda: any("new connections get" in record["message"] for record in gateway.records()), 20)


def test_files_that_cannot_be_used_stop_it_before_it_listens(files: Files) -> None:
    env = {**files.env, "TORCHGATE_MODEL_STORE": str(files.folder)}
    assert torchgate("check", TORCHGATE_PORT="0", **env).returncode == 0
    encrypted = files.folder / "encrypted.key"
    _encrypt(files.key, encrypted)
    clients = {"TORCHGATE_CLIENT_CERTIFICATES": "accept"}
    for change, said in (
        ({"TORCHGATE_TLS_KEY_FILE": ""}, "TORCHGATE_TLS_CERT_FILE needs TORCHGATE_TLS_KEY_FILE"),
        ({"TORCHGATE_TLS_CERT_FILE": ""}, "TORCHGATE_TLS_KEY_FILE needs TORCHGATE_TLS_CERT_FILE"),
        ({"TORCHGATE_TLS_CERT_FILE": str(files.key)}, "PEM"),
        ({"TORCHGATE_TLS_KEY_FILE": str(files.folder / "none")}, "No such file"),
        ({"TORCHGATE_TLS_KEY_FILE": str(encrypted)}, "encrypted"),
        ({"TORCHGATE_TLS_CLIENT_CA_FILE": str(files.certificate)}, "TORCHGATE_CLIENT_CERTIFICATES"),
        ({"TORCHGATE_CLIENT_CERTIFICATES": "accept"}, "TORCHGATE_TLS_CLIENT_CA_FILE"),
        ({**clients, "TORCHGATE_TLS_CLIENT_CA_FILE": str(files.key)}, "TORCHGATE_TLS_CLIENT_CA_FILE"),
    ):
        done = torchgate("check", TORCHGATE_PORT="0", **{**env, **change})
        assert done.returncode == 2, change
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def _encrypt(key: Path, target: Path) -> None:
    from cryptography.hazmat.primitives import serialization as pem  # noqa: PLC0415

    loaded = pem.load_pem_private_key(key.read_bytes(), None)
    target.write_bytes(
        loaded.private_bytes(
            pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"a passphrase of the test")
        )
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("num_clients", "num_reloads"), [(4, 3), pytest.param(32, 20, marks=[pytest.mark.soak, pytest.mark.timeout(400)])]
)
async def test_reloads_under_load_lose_no_request(files: Files, num_clients: int, num_reloads: int) -> None:
    num_answers, failures = 0, list[str]()
    with gateway_of(files) as gateway:
        stopped = asyncio.Event()

        async def ask() -> None:
            """Ask over and over, each time 20 times on one connection."""
            nonlocal num_answers
            while not stopped.is_set():
                async with httpx.AsyncClient(base_url=gateway.url, verify=files.trust, trust_env=False) as client:
                    for _ in range(20):
                        try:
                            answer = await client.get("/healthz", timeout=30)
                        except httpx.HTTPError as error:
                            failures.append(repr(error))
                            return
                        if answer.status_code != 200:
                            failures.append(answer.text)
                        num_answers += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(num_clients):
                group.create_task(ask())
            try:
                for _ in range(num_reloads):
                    serial = files.issue()
                    reload(gateway)
                    await asyncio.to_thread(wait_until, lambda: serial_shown(gateway, files.trust) == serial)  # noqa: B023
            finally:
                stopped.set()
    assert failures == []
    assert num_answers > num_clients * num_reloads
