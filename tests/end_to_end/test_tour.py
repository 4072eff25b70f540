"""`torchgate tour` as a user runs it: the faulty release is rolled back, and nothing is left, nor after Ctrl-C."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway import TOKEN, GatewayProcess
from tests.stack import Trained, gateway_of_workers
from tests.torchserve_process import ROOT

MOST_SECONDS = 120.0
VERSION = "0.0-tour"


@pytest.fixture
def gateway(trained_digits: Trained) -> Iterator[GatewayProcess]:
    """A gateway over a store of its own, which holds one version of the digits."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        store = shutil.copytree(trained_digits.store, Path(folder) / "store", ignore=shutil.ignore_patterns("*.db*"))
        listed = json.loads((store / "manifest.json").read_text())
        listed["archives"] = [each for each in listed["archives"] if each["variant"] == "fp32"]
        (store / "manifest.json").write_text(json.dumps(listed, indent=2) + "\n")
        (store / ".lock").touch()  # the trainers'
        with gateway_of_workers(store, TORCHGATE_WORKERS_PER_VERSION="1") as process:
            process.until_every_version_is_ready()
            yield process


@contextmanager
def tour(gateway: GatewayProcess, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the tour, which is killed if it is still there at the end."""
    command = [sys.executable, "-m", "service", "tour", "--url", gateway.url, "--model-store", store_of(gateway)]
    process = subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, "TORCHGATE_ADMIN_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def store_of(gateway: GatewayProcess) -> str:
    return gateway.env["TORCHGATE_MODEL_STORE"]


def files(gateway: GatewayProcess) -> dict[str, bytes]:
    """Return what is in the store, the gateway's database left out."""
    return {path.name: path.read_bytes() for path in Path(store_of(gateway)).iterdir() if ".db" not in path.name}


def shown(gateway: GatewayProcess) -> dict[str, Any]:
    """Return the weight of each version that the gateway serves."""
    return {each["version"]: each["weight"] for each in gateway.get("/models/digits").json()["versions"]}


def last_rollout(gateway: GatewayProcess) -> Any:
    return gateway.get("/models/digits/rollouts").json()["rollouts"][0]


def test_a_faulty_release_is_rolled_back_before_the_users_eyes(gateway: GatewayProcess) -> None:
    before, started = files(gateway), time.monotonic()
    with tour(gateway) as process:
        printed, _ = process.communicate(timeout=MOST_SECONDS)
    print(printed)
    assert process.returncode == 0, printed + gateway.log[-2000:]
    assert time.monotonic() - started < MOST_SECONDS
    assert f"Open {gateway.url}/ to watch" in printed
    assert "4. Rolled back at" in printed
    assert "guard agreement:" in printed or "guard accuracy:" in printed
    assert last_rollout(gateway)["state"] == "rolled_back"
    assert files(gateway) == before
    assert shown(gateway) == {"1.0": 100}


@pytest.mark.parametrize("at", ["1. Make", "3. Send"])
def test_ctrl_c_leaves_nothing_behind(gateway: GatewayProcess, at: str) -> None:
    before = files(gateway)
    with tour(gateway) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith(at):
                process.send_signal(signal.SIGINT)
                break
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 1, "".join(lines) + printed
    assert "stopped before the rollback; nothing of it is left" in printed
    assert files(gateway) == before
    assert shown(gateway) == {"1.0": 100}


def test_a_tour_that_was_killed_is_cleaned_up(gateway: GatewayProcess) -> None:
    before = files(gateway)
    with tour(gateway) as process:
        assert process.stdout is not None
        assert any(line.startswith("3. Send") for line in process.stdout)
        process.kill()
    assert shown(gateway)[VERSION] > 0
    with tour(gateway) as process:
        printed, _ = process.communicate(timeout=60)
    assert (process.returncode, "torchgate tour --clean-up" in printed) == (1, True), printed
    with tour(gateway, "--clean-up") as process:
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, printed
    assert last_rollout(gateway)["state"] == "aborted"
    assert files(gateway) == before
    assert shown(gateway) == {"1.0": 100}


def test_what_stands_in_the_way_is_named_before_anything_is_changed(gateway: GatewayProcess, tmp_path: Path) -> None:
    store, others = Path(store_of(gateway)), tmp_path / "others"
    others.mkdir()
    (others / "bird-robin.png").write_bytes((ROOT / "samples" / "digit-7.png").read_bytes())
    before = files(gateway)
    for options, told in (
        (("--samples", str(tmp_path)), "holds no image named as digit-7.png is"),
        (("--samples", str(others)), "0 of 1 sample images are right"),
        (("--model-store", str(tmp_path)), "Name the gateway's own store with --model-store"),
    ):
        with tour(gateway, *options) as process:
            printed, _ = process.communicate(timeout=60)
        assert (process.returncode, told in printed) == (1, True), printed
    (store / "manifest.json.sig").touch()
    with tour(gateway) as process:
        printed, _ = process.communicate(timeout=60)
    assert (process.returncode, "is signed" in printed) == (1, True), printed
    (store / "manifest.json.sig").unlink()
    assert files(gateway) == before
    assert gateway.get("/models/digits/rollouts").json()["rollouts"] == []


def test_another_machine_has_to_be_named_on_the_command_line() -> None:
    env = {**os.environ, "TORCHGATE_URL": "http://192.0.2.1:8000", "TORCHGATE_ADMIN_TOKEN": TOKEN}
    command = [sys.executable, "-m", "service", "tour"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "pass --url http://192.0.2.1:8000" in done.stderr) == (1, True), done.stderr
