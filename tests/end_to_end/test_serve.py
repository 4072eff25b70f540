"""`make serve` as a user runs it: it comes up, it answers, Ctrl-C leaves nothing behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil

from deploy.next_steps import SAMPLES
from tests import images
from tests.end_to_end.test_images import bars
from tests.odd_archive import make_odd_store
from tests.stack import Trained
from tests.torchserve_process import PORTS, ROOT, free_ports


@contextmanager
def make_serve(trained: Trained, scratch: Path, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run the verb on free ports; whatever of it is left at the end is killed."""
    ports = {
        f"TORCHGATE_TORCHSERVE_{name.upper()}_PORT": str(port) for name, port in zip(PORTS, free_ports(5), strict=True)
    }
    log = scratch / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["make", "serve", f"VENV={sys.prefix}"],
            cwd=ROOT,
            env={
                **os.environ,
                "TORCHGATE_MODEL_STORE": str(trained.store),
                "TORCHGATE_PORT": "0",
                "TMPDIR": str(scratch),
                **ports,
                **env,
            },
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process, log
    finally:
        for each in family(process):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                each.kill()
        process.wait(10)


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def is_java(process: psutil.Process) -> bool:
    try:
        return "org.pytorch.serve.ModelServer" in process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return False


def url_in(log: Path) -> str:
    """Return where the gateway says that it listens, once it says so."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := re.search(r"listens on (http://[0-9.:]+)", log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def until_ready(url: str, log: Path, status: int = 200) -> None:
    deadline = time.monotonic() + 120
    while answered(url, log) != status:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def until_said(text: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def answered(url: str, log: Path) -> int:
    try:
        return httpx.get(f"{url}/readyz", timeout=10, trust_env=False).status_code
    except httpx.TransportError as error:
        raise AssertionError(log.read_text()) from error


def test_it_answers_and_ctrl_c_leaves_nothing(trained: Trained) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="s-") as scratch,  # short, for the sake of unix sockets' names
        make_serve(trained, Path(scratch)) as (process, log),
    ):
        url = url_in(log)
        until_ready(url, log)
        answer = httpx.post(f"{url}/predict", content=images.encode(bars(True), "PNG"), timeout=30, trust_env=False)
        assert answer.json()["predictions"][0]["label"] == "horizontal"
        everyone = family(process)
        assert_registration_is_the_gateways_alone(*filter(is_java, everyone))
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does at Ctrl-C
        process.wait(40)
        _, alive = psutil.wait_procs(everyone, timeout=10)
        assert not alive, alive
        assert "nothing is left in progress" in log.read_text()
        left = [path.name for path in Path(scratch).iterdir() if path != log]
        assert left == []


def assert_registration_is_the_gateways_alone(java: psutil.Process) -> None:
    sockets = {str(each.laddr) for each in java.net_connections("unix")}
    (path,) = (path for path in sockets if path.endswith("management/socket"))
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    assert len({each.laddr.port for each in java.net_connections("tcp") if each.status == "LISTEN"}) == 4


def test_with_workers_there_is_no_java(trained: Trained) -> None:
    (port,) = free_ports(1)
    with (
        tempfile.TemporaryDirectory(prefix="s-") as scratch,
        make_serve(trained, Path(scratch), BACKEND="workers", JAVA_HOME="/nowhere", TORCHGATE_PORT=str(port)) as (
            process,
            log,
        ),
    ):
        url = url_in(log)
        until_ready(url, log)
        until_said(f"curl --data-binary @path/to/image.png http://localhost:{port}/predict", log)
        until_said(f"Status page: http://localhost:{port}\n", log)
        assert all((ROOT / sample).is_file() for sample in SAMPLES.values())
        answer = httpx.post(f"{url}/predict", content=images.encode(bars(True), "PNG"), timeout=30, trust_env=False)
        assert answer.json()["predictions"][0]["label"] == "horizontal"
        everyone = family(process)
        assert not any(is_java(each) for each in everyone)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(40)
        _, alive = psutil.wait_procs(everyone, timeout=10)
        assert not alive, alive
        left = [path.name for path in Path(scratch).iterdir() if path != log]
        assert left == []


def test_a_torchserve_that_dies_is_started_again(trained: Trained) -> None:
    with tempfile.TemporaryDirectory(prefix="s-") as scratch, make_serve(trained, Path(scratch)) as (process, log):
        url = url_in(log)
        until_ready(url, log)
        for each in filter(is_java, family(process)):
            each.kill()
        until_ready(url, log, 503)
        until_ready(url, log)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(40)


def test_a_taken_port_stops_it_with_one_clear_line(trained: Trained) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, tempfile.TemporaryDirectory(prefix="s-") as scratch:
        port = str(taken.getsockname()[1])
        with make_serve(trained, Path(scratch), TORCHGATE_PORT=port) as (process, log):
            assert process.wait(60) != 0
            assert f"cannot listen on 127.0.0.1:{port}" in log.read_text()


def test_a_port_of_torchserve_that_is_taken_stops_all(trained: Trained) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, tempfile.TemporaryDirectory(prefix="s-") as scratch:
        port = str(taken.getsockname()[1])
        with make_serve(trained, Path(scratch), TORCHGATE_TORCHSERVE_GRPC_PORT=port) as (process, log):
            assert process.wait(100) not in {None, 0}
            assert port in log.read_text()


def test_a_file_of_the_model_store_runs_no_command(tmp_path: Path) -> None:
    store = make_odd_store(tmp_path / "store")
    (store / "tuned.env").write_text(f"OMP_NUM_THREADS=1'; touch {tmp_path}/hacked; '\n")
    with make_serve(Trained(store, store), tmp_path, BACKEND="workers") as (process, log):
        assert process.wait(60) == 2
        assert "tuned.env, line 1" in log.read_text()
    assert not (tmp_path / "hacked").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"store", "log"}
