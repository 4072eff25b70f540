"""A disk is full, memory is used up, files change, a port is taken: what was accepted is kept, predictions go on."""

import os
import shutil
import subprocess
import sys
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
from tests.images import grey_png
from tests.odd_archive import FILE, make_odd_store
from tests.stack import Trained, gateway_of_workers
from training.archive.signatures import new_key, signer

MEBIBYTE = 2**20
MODEL = "synthetic"
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


def test_the_disk_of_the_model_store_is_full(trained: Trained, tmp_path: Path) -> None:
    key, disk = tmp_path / "key", tmp_path / "disk"
    disk.mkdir()
    new_key(key)
    options = {"TORCHGATE_TRUSTED_KEYS_DIR": str(tmp_path), "TORCHGATE_DATABASE_URL": f"sqlite:///{tmp_path}/state.db"}
    gateway = gateway_of_workers(disk, **ALONE, **options)
    mount_for(gateway, f"-t tmpfs -o size=32m none {disk}")
    signs = signer(key, 1.0)
    assert signs is not None
    with gateway:
        store = seen_by(gateway, disk)
        shutil.copytree(trained.store, store, dirs_exist_ok=True)
        signing = ("--model-store", str(store), "--signing-key-file", str(key))
        signs.sign(store / "manifest.json")
        gateway.until_every_version_is_ready()
        released = contents(store)
        publish = ("archive", "--run", str(trained.run), "--name", MODEL, *signing)
        with full(store) as filler:
            for num_free in (0, 3 * MEBIBYTE):  # before the first archive, and in the middle of them
                os.truncate(filler, filler.stat().st_size - num_free)
                said = training(*publish, status=2)
                assert "No space left on device. It is as it was before: make room there, then run this again" in said
                assert (said.count("\n"), str(store) in said) == (1, True)
                assert contents(store) == released
            assert {predict(gateway, grey_png()).json()["version"] for _ in range(20)} == {"1.0"}
        training(*publish)
        with recovery("room on the disk of the model store"):
            until(lambda: predict(gateway, grey_png(), version="1.1").status_code == 200, gateway)


def training(*arguments: str, status: int = 0) -> str:
    """Run a verb of training as a user does; return what it says on standard error."""
    command = [sys.executable, "-m", "training", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr


def contents(store: Path) -> dict[str, bytes]:
    """Return the files of a model store."""
    return {path.name: path.read_bytes() for path in store.iterdir() if path.name not in {"filler", ".lock"}}


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
