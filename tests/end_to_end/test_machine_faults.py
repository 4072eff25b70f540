"""A disk is full, memory is used up, files change, a port is taken: what was accepted is kept, predictions go on."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.faults import (
    full,
    models,
    mount_for,
    predict,
    put_traffic,
    recovery,
    seen_by,
    traffic,
    until,
)
from tests.odd_archive import FILE, make_odd_store
from tests.stack import gateway_of_workers

MEBIBYTE = 2**20
ALONE = {
    "TORCHGATE_WORKERS_PER_VERSION": "1",
    "TORCHGATE_MODEL_STORE_POLICY": "all",
    "TORCHGATE_MODEL_STORE_POLL_SECONDS": "0.2",
}


def test_the_disk_of_the_state_database_is_full(tmp_path: Path) -> None:
    store, disk = make_odd_store(tmp_path / "store", v1_1=""), tmp_path / "state"
    disk.mkdir()
    gateway = gateway_of_workers(store, TORCHGATE_DATABASE_URL=f"sqlite:///{disk}/state.db", **ALONE)
    mount_for(gateway, f"-t tmpfs -o size=1m none {disk}")
    with gateway:
        gateway.until_every_version_is_ready()
        assert put_traffic(gateway, {"1.0": 25, "1.1": 75}).status_code == 200
        with full(seen_by(gateway, disk)):
            # The log of the database has some room of its own, which changes use up first.
            accepted = {"1.0": 25.0, "1.1": 75.0}
            for percent in range(1, 100):
                wanted = {"1.0": float(percent), "1.1": 100.0 - percent}
                answer = put_traffic(gateway, wanted)
                if answer.status_code != 200:
                    break
                accepted = wanted
            assert (answer.status_code, answer.json()["code"]) == (503, "state_unavailable")
            assert {predict(gateway).status_code for _ in range(20)} == {200}
            assert gateway.get("/readyz").status_code == 200
            assert traffic(gateway) == accepted
        with recovery("room on the disk of the state database"):
            until(lambda: put_traffic(gateway, {"1.0": 10, "1.1": 90}).status_code == 200, gateway)
        assert traffic(gateway) == {"1.0": 10, "1.1": 90}


def test_the_disk_where_archives_are_unpacked_is_full(tmp_path: Path) -> None:
    store, disk = make_odd_store(tmp_path / "store"), tmp_path / "unpacked"
    disk.mkdir()
    gateway = gateway_of_workers(store, TMPDIR=str(disk), **ALONE)
    mount_for(gateway, f"-t tmpfs -o size=1m none {disk}")
    with gateway:
        gateway.until_every_version_is_ready()
        with full(seen_by(gateway, disk)):
            make_odd_store(store, v1_1="")
            until(lambda: "the disk is full" in models(gateway), gateway)
            assert {predict(gateway).json()["version"] for _ in range(20)} == {"1.0"}
        with recovery("room on the disk of archives"):
            until(lambda: predict(gateway, version="1.1").status_code == 200, gateway)


def test_a_worker_is_out_of_memory(tmp_path: Path) -> None:
    most = 300 * MEBIBYTE
    options = {**ALONE, "TORCHGATE_WORKERS_PER_VERSION": "2", "TORCHGATE_WORKER_MAX_BYTES": str(most)}
    with gateway_of_workers(make_odd_store(tmp_path / "store"), **options) as gateway:
        gateway.until_every_version_is_ready()
        assert predict(gateway, f"leak:{most}".encode()).status_code == 200
        with recovery("a worker out of memory"):

            def is_replaced() -> bool:
                assert predict(gateway).json()["predictions"][0]["label"] == "one"  # each of them, meanwhile
                restarted = 'torchgate_worker_restarts_total{model="odd",reason="memory",version="1.0"} 1.0'
                return restarted in gateway.get("/metrics").text

            until(is_replaced, gateway)
            gateway.until_every_version_is_ready()


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_the_model_store_changes_underneath(tmp_path: Path, change: str) -> None:
    store = make_odd_store(tmp_path / "store")
    archive = store / FILE
    released = archive.read_bytes()
    with gateway_of_workers(store, **ALONE) as gateway:
        gateway.until_every_version_is_ready()
        if change == "replaced":
            archive.write_bytes(b"something else")
        else:
            archive.unlink()
            (store / "manifest.json").rename(store / "kept")
        assert {predict(gateway).json()["predictions"][0]["label"] for _ in range(20)} == {"one"}
        predict(gateway, b"exit:3")  # its worker has to be replaced, by what was verified
        until(lambda: predict(gateway).status_code == 200, gateway)
        assert gateway.get("/readyz").status_code == 200
    with gateway_of_workers(store, **ALONE) as gateway:
        gateway.until_ready(status=503)
        with recovery(f"an archive {change}, put back"):
            archive.write_bytes(released)
            if change == "removed":
                (store / "kept").rename(store / "manifest.json")
            until(lambda: predict(gateway).status_code == 200, gateway)


def test_a_second_gateway_on_the_port(tmp_path: Path) -> None:
    store = make_odd_store(tmp_path / "store")
    with gateway_of_workers(store, **ALONE) as gateway:
        gateway.until_every_version_is_ready()
        assert put_traffic(gateway, {"1.0": 100}).status_code == 200
        host, port = gateway.url.removeprefix("http://").split(":")
        second = gateway_of_workers(store, **ALONE, TORCHGATE_PORT=port)
        done = subprocess.run(
            second.command, env={**os.environ, **second.env}, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 2
        assert f"cannot listen on {host}:{port}" in done.stderr
        assert "Traceback" not in done.stderr
        assert {predict(gateway).status_code for _ in range(20)} == {200}
        assert put_traffic(gateway, {"1.0": 100}).status_code == 200
