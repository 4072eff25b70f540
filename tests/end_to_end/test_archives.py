"""A tampered archive is refused by real model servers' gateways, at the first load and at every other."""

import os
import signal
import time
from pathlib import Path

import httpx
import psutil

from tests.gateway import GatewayProcess
from tests.odd_archive import FILE, make_odd_store
from tests.signing import new_key, sign, trust
from tests.stack import gateway_of_workers, gateway_over
from tests.torchserve_process import TorchServeProcess, wait_until

HEADERS = {"Content-Type": "image/png"}


def until_refused(gateway: GatewayProcess, fault: str, timeout_seconds: float = 60) -> None:
    """Return once /models says what is wrong with the archive or its manifest, and the log said it, too."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        versions = httpx.get(f"{gateway.url}/models/odd", trust_env=False).json().get("versions", [])
        ready = httpx.get(f"{gateway.url}/readyz", trust_env=False).json()
        reasons = [each["reason"] for each in versions if each["state"] == "failed"]
        if any(f"({fault})" in reason for reason in (*reasons, ready.get("detail", ""))):
            break
        assert time.monotonic() < deadline, (versions, ready, gateway.log[-2000:])
        time.sleep(0.05)
    assert any(f"({fault})" in record["message"] for record in gateway.records())


def predicted(gateway: GatewayProcess) -> int:
    return httpx.post(
        f"{gateway.url}/predict", content=b"class:1", headers=HEADERS, trust_env=False, timeout=30
    ).status_code


def test_torchserve_gets_verified_copies_only(tmp_path: Path) -> None:
    store, copies, key = make_odd_store(tmp_path / "store"), tmp_path / "copies", new_key()
    sign(store, key, 1)
    older = (store / "manifest.json.sig").read_bytes()
    sign(store, key, 2)
    newest = (store / "manifest.json.sig").read_bytes()
    verified = {
        "TORCHGATE_VERIFIED_ARCHIVES_DIR": str(copies),
        "TORCHGATE_TRUSTED_KEYS_DIR": str(trust(tmp_path / "keys", key)),
        "TORCHGATE_WORKERS_PER_VERSION": "1",
    }
    released = (store / FILE).read_bytes()
    with TorchServeProcess(store, env=verified) as server:
        with gateway_over(server, TORCHGATE_BACKEND="grpc", **verified) as gateway:
            gateway.until_every_version_is_ready()
            assert predicted(gateway) == 200
            assert list(copies.iterdir()) == []  # removed: TorchServe has unpacked it
        with gateway_over(server, TORCHGATE_BACKEND="rest", **verified) as gateway:
            gateway.until_every_version_is_ready()
            assert not [each for each in gateway.records() if "replaced" in each["message"]]  # it knows its copy
            (store / FILE).write_bytes(released + b"tampered")
            server.kill()
            server.start()
            until_refused(gateway, "tampered")
        (store / "manifest.json.sig").write_bytes(older)
        with gateway_over(server, TORCHGATE_BACKEND="grpc", **verified) as gateway:
            until_refused(gateway, "replayed")
            (store / "manifest.json.sig").write_bytes(newest)
            until_refused(gateway, "tampered")
            (store / FILE).write_bytes(released)
            gateway.until_every_version_is_ready()
            assert predicted(gateway) == 200


def test_a_replaced_worker_loads_what_was_verified(tmp_path: Path) -> None:
    store, key = make_odd_store(tmp_path / "store"), new_key()
    sign(store, key, 1)
    signed = {"TORCHGATE_TRUSTED_KEYS_DIR": str(trust(tmp_path / "keys", key)), "TORCHGATE_WORKERS_PER_VERSION": "1"}
    released = (store / FILE).read_bytes()
    with gateway_of_workers(store, **signed) as gateway:
        gateway.until_every_version_is_ready()
        (store / FILE).write_bytes(b"tampered")
        assert gateway.process is not None
        workers = [
            each
            for each in psutil.Process(gateway.process.pid).children()
            if any(part.endswith("launch.py") for part in each.cmdline())
        ]
        for worker in workers:
            os.kill(worker.pid, signal.SIGKILL)
        psutil.wait_procs(workers, 10)
        wait_until(lambda: predicted(gateway) == 200, 60)  # by a new one; all that there were are gone
    with gateway_of_workers(store, **signed) as gateway:
        until_refused(gateway, "tampered")
        (store / FILE).write_bytes(released)
        gateway.until_every_version_is_ready()
    sign(store, key, 2, days=-1)
    with gateway_of_workers(store, **signed) as gateway:
        until_refused(gateway, "expired")
