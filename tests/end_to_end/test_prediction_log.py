"""The prediction log of real gateways: stopped, killed, in a small shared folder, on a full disk, learnt from."""

import asyncio
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from tests import images
from tests.faults import full, mount_for, recovery, seen_by
from tests.gateway import GatewayProcess
from tests.odd_archive import make_odd_store
from tests.stack import Trained, gateway_of_workers
from tests.torchserve_process import ROOT
from training.data.sources.synthetic import CLASSES, synthetic

NUM_CLIENTS = 8
HEADERS = {"Content-Type": "image/png"}
MEBIBYTE = 2**20


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="log-") as folder:
        yield Path(folder)


def logged(folder: Path, kind: str = "predictions") -> list[dict[str, Any]]:
    """Return all rows; there is no file that cannot be read."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            rows = file.read(use_threads=False).to_pylist()
        found += rows if path.name.startswith(kind) else []
    return found


def predict(gateway: GatewayProcess, body: bytes) -> httpx.Response:
    return httpx.post(f"{gateway.url}/predict", content=body, headers=HEADERS, timeout=30, trust_env=False)


def records(gateway: GatewayProcess, outcome: str) -> float:
    lines = httpx.get(f"{gateway.url}/metrics", timeout=10, trust_env=False).text.splitlines()
    name = f'torchgate_prediction_log_records_total{{outcome="{outcome}"}}'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def until_records(gateway: GatewayProcess, outcome: str, at_least: float) -> None:
    deadline = time.monotonic() + 30
    while records(gateway, outcome) < at_least:
        assert time.monotonic() < deadline, f"{records(gateway, outcome)} {outcome}, {at_least} expected"
        time.sleep(0.02)


def of_small_files(folder: Path) -> dict[str, str]:
    """Return settings whose log writes a file for each 64 KiB of images, and not only every minute."""
    return {
        "TORCHGATE_PREDICTION_LOG_DIR": str(folder),
        "TORCHGATE_PREDICTION_LOG_INPUTS": "image",
        "TORCHGATE_PREDICTION_LOG_MAX_BYTES": str(MEBIBYTE),
        "TORCHGATE_MAX_BODY_BYTES": str(MEBIBYTE // 4),
    }


async def load_until_killed(gateway: GatewayProcess, log: Path, num_files: int) -> set[str]:
    """Have clients ask without a pause, kill the gateway after some files; return the ids of the answers."""
    answered: set[str] = set()
    assert gateway.process is not None
    num_wanted = num_whole_files(log) + num_files

    async def client(http: httpx.AsyncClient, number: int) -> None:
        while True:
            try:
                answer = await http.post("/predict", content=padded(f"class:{number % 4}", 10_000), headers=HEADERS)
            except httpx.TransportError:
                return
            assert answer.status_code == 200
            answered.add(answer.json()["id"])

    async with httpx.AsyncClient(base_url=gateway.url, timeout=30, trust_env=False) as http:
        clients = [asyncio.create_task(client(http, number)) for number in range(NUM_CLIENTS)]
        async with asyncio.timeout(60):
            while num_whole_files(log) < num_wanted:
                await asyncio.sleep(0.001)
            gateway.process.kill()
            await asyncio.gather(*clients)
    return answered


def num_whole_files(folder: Path) -> int:
    return len(list(folder.glob("*.parquet")))


def padded(text: str, num_bytes: int) -> bytes:
    return text.encode().ljust(num_bytes)


def test_a_killed_gateway_leaves_complete_files(scratch: Path) -> None:
    store, log = make_odd_store(scratch / "store"), scratch / "log"
    log.mkdir()
    ids: set[str] = set()
    for num_files in (2, 7, 12):
        with gateway_of_workers(store, **of_small_files(log)) as gateway:
            gateway.until_every_version_is_ready()
            ids |= asyncio.run(load_until_killed(gateway, log, num_files))
        rows = [row["id"] for row in logged(log)]
        assert len(rows) == len(set(rows)) >= num_files
    # Each gateway lost its buffer, and the answers that no client has seen are in the log, too.
    print(f"{len(ids)} answers, {len(ids - set(rows))} not in the log")
    assert set(rows) & ids


def test_a_gateway_that_is_stopped_loses_nothing(scratch: Path) -> None:
    store, log = make_odd_store(scratch / "store"), scratch / "log"
    with gateway_of_workers(store, TORCHGATE_PREDICTION_LOG_DIR=str(log)) as gateway:
        gateway.until_every_version_is_ready()
        ids = [predict(gateway, b"class:1").json()["id"] for _ in range(10)]
        gateway.stop()
    assert [row["id"] for row in logged(log)] == ids


def test_two_gateways_keep_the_bound_together(scratch: Path) -> None:
    store, log = make_odd_store(scratch / "store"), scratch / "log"
    log.mkdir()
    options = of_small_files(log)
    with gateway_of_workers(store, **options) as one, gateway_of_workers(store, **options) as other:
        sizes, ids = [], []
        for gateway in (one, other):
            gateway.until_every_version_is_ready()
        for _ in range(40):
            for gateway in (one, other):
                answer = predict(gateway, b"pad:" + secrets.token_hex(40_000).encode())
                ids.append(answer.json()["id"])
                sizes.append(bytes_in(log))
        for gateway in (one, other):
            until_records(gateway, "written", 40)
            assert records(gateway, "failed") == records(gateway, "dropped") == 0
            sizes.append(bytes_in(log))
    # Two that write at the same moment may exceed the bound by a file.
    assert MEBIBYTE / 2 < max(sizes) <= MEBIBYTE + 100_000
    kept = {row["id"]: row["image"] for row in logged(log)}
    assert 5 < len(kept) < 40
    assert all(len(image) == 80_004 for image in kept.values())
    assert set(kept) <= set(ids[-2 * len(kept) :])  # the oldest went


def bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def test_a_full_disk_costs_rows_and_no_prediction(scratch: Path) -> None:
    log, store = scratch / "log", make_odd_store(scratch / "store")
    log.mkdir()
    gateway = gateway_of_workers(store, **of_small_files(log))
    mount_for(gateway, f"-t tmpfs -o size=256k none {log}")  # a small disk that is gone with the gateway
    with gateway:
        gateway.until_every_version_is_ready()
        disk = seen_by(gateway, log)
        first = predict(gateway, padded("class:1", 70_000)).json()["id"]
        until_records(gateway, "written", 1)
        with full(disk):
            for number in range(1, 4):
                answer = predict(gateway, padded("class:2", 70_000))
                assert (answer.status_code, answer.json()["predictions"][0]["label"]) == (200, "two")
                until_records(gateway, "failed", number)
        with recovery("room on the disk of the prediction log"):
            last = predict(gateway, padded("class:3", 70_000)).json()["id"]
            until_records(gateway, "written", 2)
        assert [row["id"] for row in logged(disk)] == [first, last]
        assert not list(disk.glob(".*.partial"))
        said = [line["message"] for line in gateway.records() if "prediction log" in line["message"]]
    assert len(said) == 2, said
    assert "No space left" in said[0]
    assert "3 rows were lost" in said[1]


def test_what_was_answered_is_evaluated_and_learnt_from(scratch: Path, trained: Trained) -> None:
    log, learnt = scratch / "log", scratch / "images"
    data = synthetic()
    shown = list(range(30))
    options = {"TORCHGATE_PREDICTION_LOG_DIR": str(log), "TORCHGATE_PREDICTION_LOG_INPUTS": "image"}
    num_right = 0
    with gateway_of_workers(trained.store, **options) as gateway:
        gateway.until_every_version_is_ready()
        for index in shown:
            answer = predict(gateway, images.encode(data.load(index), "PNG")).json()
            label = CLASSES[data.labels[index]]
            given = {"id": answer["id"], "label": label}
            told = httpx.post(f"{gateway.url}/feedback", json=given, timeout=30, trust_env=False)
            num_right += told.json()["correct"]
    figures = training("evaluate", "--log", log, "--images", learnt)
    assert f"| synthetic 1.0 | {len(shown)} |" in figures
    assert f"| {len(shown)} | {num_right / len(shown):.2%} (" in figures
    assert "horizontal 10, square 10, vertical 10" in figures
    options_of_model = ["--channels", "1", "--height", "12", "--width", "12", "--preset", "synthetic"]
    prepared = training("prepare", "--data", learnt, "--runs", scratch / "runs", *options_of_model)
    assert "run:" in prepared


def training(*args: str | Path) -> str:
    command = [sys.executable, "-m", "training", *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
