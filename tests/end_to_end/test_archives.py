"""A tampered archive is refused by real model servers' gateways, at the first load and at every other."""

import os
import signal
import time
from pathlib import Path

import httpx
import psutil

from tests.gateway import GatewayProcess
from tests.odd_archive import FILE, make_odd_store
from tests.stack import gateway_of_workers, gateway_over
from tests.torchserve_process import TorchServeProcess, wait_until

HEADERS = {"Content-Type": "image/png"}


def until_refused(gateway: GatewayProcess, timeout_seconds: float = 60) -> None:
    """Return once /models says that the archive is not the released one, and the log said it, too."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        versions = httpx.get(f"{gateway.url}/models/odd", trust_env=False).json().get("versions", [])
        reasons = {each["version"]: each["reason"] for each in versions if each["state"] == "failed"}
        if f"{FILE}: its sha256 is" in reasons.get("1.0", ""):
            break
        assert time.monotonic() < deadline, (versions, gateway.log[-2000:])
        time.sleep(0.05)
    assert any("odd 1.0 is failed" in record["message"] for record in gateway.records())


def predicted(gateway: GatewayProcess) -> int:
    return httpx.post(
        f"{gateway.url}/predict", content=b"class:1", headers=HEADERS, trust_env=False, timeout=30
    ).status_code


def test_torchserve_gets_verified_copies_only(tmp_path: Path) -> None:
    store, copies = make_odd_store(tmp_path / "store"), tmp_path / "copies"
    verified = {"TORCHGATE_VERIFIED_ARCHIVES_DIR": str(copies), "TORCHGATE_WORKERS_PER_VERSION": "1"}
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
            until_refused(gateway)
        with gateway_over(server, TORCHGATE_BACKEND="grpc", **verified) as gateway:
            until_refused(gateway)
            (store / FILE).write_bytes(released)
            gateway.until_every_version_is_ready()
            assert predicted(gateway) == 200


def test_a_replaced_worker_loads_what_was_verified(tmp_path: Path) -> None:
    store = make_odd_store(tmp_path / "store")
    with gateway_of_workers(store, TORCHGATE_WORKERS_PER_VERSION="1") as gateway:
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
    with gateway_of_workers(store) as gateway:
        until_refused(gateway)
