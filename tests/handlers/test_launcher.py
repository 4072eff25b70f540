"""TorchServe as a process: how its launcher starts it, stops it and names what is wrong."""

import re
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from tests import images
from tests.handlers.calls import by_grpc, grpc_predict
from tests.torchserve_process import PORTS, TorchServeProcess, wait_until


def ends(processes: list[psutil.Process], timeout_seconds: float = 10) -> bool:
    _, alive = psutil.wait_procs(processes, timeout_seconds)
    return not alive


def test_two_servers_run_side_by_side(store: Path) -> None:
    with TorchServeProcess(store) as first, TorchServeProcess(store) as second:
        for server in (first, second):
            assert server.register("toy-1.0.mar").status_code == 200
        results = [by_grpc(server, [images.rgb_png()], {})["results"] for server in (first, second)]
        assert results[0] == results[1]
        assert first.stop() == 128 + signal.SIGTERM
        assert by_grpc(second, [images.rgb_png()], {})["results"] == results[0]


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_stopping_leaves_nothing_behind(store: Path, asked: signal.Signals) -> None:
    with TorchServeProcess(store) as server:
        assert server.register("toy-1.0.mar", num_workers=2).status_code == 200
        family = server.family()
        assert len(server.workers()) == 2
        assert len(family) == 4
        family[0].send_signal(asked)
        assert server.process is not None
        assert server.process.wait(30) == 128 + signal.SIGTERM  # Java's own status
        assert ends(family)
        assert list(server.temporary.iterdir()) == []
        assert "did not stop" not in server.log


def test_a_call_in_flight_does_not_keep_it_from_stopping(store: Path) -> None:
    with TorchServeProcess(store) as server:
        assert server.register("toy-1.0.mar").status_code == 200
        family = server.family()
        server.workers()[0].suspend()
        errors: list[grpc.StatusCode] = []

        def call() -> None:
            try:
                grpc_predict(server, {"data": images.rgb_png()})
            except grpc.RpcError as error:
                errors.append(error.code())

        caller = threading.Thread(target=call)
        caller.start()
        wait_until(lambda: 'requests_total{model_name="toy"' in httpx.get(f"{server.metrics_url}/metrics").text)
        assert server.stop() == 128 + signal.SIGKILL
        assert "did not stop within 8 s, killing it" in server.log
        caller.join(10)
        assert errors == [grpc.StatusCode.UNAVAILABLE]
        assert ends(family)
        assert list(server.temporary.iterdir()) == []


def test_workers_end_when_java_is_killed(store: Path) -> None:
    with TorchServeProcess(store) as server:
        assert server.register("toy-1.0.mar", num_workers=2).status_code == 200
        family = server.family()
        server.java().kill()
        assert server.process is not None
        assert server.process.wait(20) == 128 + signal.SIGKILL
        assert ends(family)
        assert list(server.temporary.iterdir()) == []


def test_a_worker_that_just_started_ends_when_java_is_killed(store: Path) -> None:
    with TorchServeProcess(store) as server:
        url = f"{server.management_url}/models"
        assert (
            httpx.post(url, params={"url": "toy-1.0.mar", "initial_workers": 2, "synchronous": False}).status_code
            == 202
        )
        wait_until(lambda: len(server.workers()) == 2)
        family = server.family()
        for worker in server.workers():
            worker.suspend()  # it will not notice by itself
        server.java().kill()
        assert server.process is not None
        server.process.wait(20)
        assert ends(family)


def test_a_killed_worker_is_replaced(store: Path) -> None:
    with TorchServeProcess(store) as server:
        assert server.register("toy-1.0.mar").status_code == 200
        expected = by_grpc(server, [images.rgb_png()], {})["results"]
        (worker,) = server.workers()
        worker.kill()
        wait_until(lambda: [each.pid for each in server.workers()] not in ([], [worker.pid]))
        assert by_grpc(server, [images.rgb_png()], {})["results"] == expected


def test_neither_java_nor_a_handler_gets_a_secret(store: Path) -> None:
    secrets = {
        "TORCHGATE_ADMIN_TOKEN": "correct-horse",
        "TORCHGATE_API_KEYS": "correct-horse",
        "TORCHGATE_API_KEYS_FILE": "/run/correct-horse",
        "TORCHGATE_DATABASE_URL": "postgresql://gateway:correct-horse@database/torchgate",
        "PGPASSWORD": "correct-horse",
    }
    with TorchServeProcess(store, env=secrets) as server:
        assert server.register("toy-1.0.mar").status_code == 200
        environments = [process.environ() for process in server.family()]
    assert len(environments) == 3
    assert all("TORCHGATE_MODEL_STORE" in each for each in environments)
    assert "correct-horse" not in str(environments)


@pytest.mark.parametrize("name", PORTS)
def test_a_port_that_is_taken_is_an_error_that_names_it(store: Path, name: str) -> None:
    server = TorchServeProcess(store)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server.ports[name] = taken.getsockname()[1]
        try:
            server.launch()  # not start(): its probe of the port would be answered by us
            assert server.process is not None
            assert server.process.wait(60) == 1
            assert f"127.0.0.1:{server.ports[name]}" in server.log
            assert f"TORCHGATE_TORCHSERVE_{name.upper()}_PORT" in server.log
            assert "already in use" in server.log
            assert list(server.temporary.iterdir()) == []
        finally:
            server.kill()
            server.remove()


def listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def test_another_address_holds_for_all_ports_but_grpcs_for_registration(store: Path) -> None:
    server = TorchServeProcess(store, env={"TORCHGATE_TORCHSERVE_BIND": "127.0.0.2"})
    ports = dict(server.ports)
    registration = ports.pop("grpc_management")
    try:
        server.launch()
        wait_until(lambda: all(listens("127.0.0.2", port) for port in ports.values()))
        wait_until(lambda: listens("127.0.0.1", registration))
        assert not listens("127.0.0.2", registration)
        assert not any(listens("127.0.0.1", port) for port in ports.values())
        server.stop()
    finally:
        server.kill()
        server.remove()


@pytest.fixture
def management() -> Iterator[Path]:
    """A socket that is not there yet, in a folder that is not either; its name is short."""
    with tempfile.TemporaryDirectory(prefix="m-") as folder:
        yield Path(folder) / "management" / "socket"


def test_registration_is_behind_a_socket_that_others_cannot_reach(store: Path, management: Path) -> None:
    with TorchServeProcess(store, env={"TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET": str(management)}) as server:
        assert management.is_socket()
        assert management.parent.stat().st_mode & 0o777 == 0o700
        assert not listens("127.0.0.1", server.ports["management"])
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(management)), base_url="http://torchserve") as client:
            parameters = {"url": "toy-1.0.mar", "initial_workers": "1", "synchronous": "true"}
            assert client.post("/models", params=parameters, timeout=60).status_code == 200
        server.java().kill()
        assert server.process is not None
        server.process.wait(20)
        assert not management.exists()


def test_a_folder_that_others_can_enter_is_refused(store: Path, management: Path) -> None:
    management.parent.mkdir()
    management.parent.chmod(0o750)
    server = TorchServeProcess(store, env={"TORCHGATE_TORCHSERVE_MANAGEMENT_SOCKET": str(management)})
    try:
        with pytest.raises(RuntimeError, match=f"others can enter {management.parent}"):
            server.start()
    finally:
        server.remove()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"TORCHGATE_MODEL_STORE": "/nowhere"}, "TORCHGATE_MODEL_STORE: there is no folder /nowhere"),
        ({"PYTHON": "/nowhere/python"}, "PYTHON: cannot run /nowhere/python"),
        ({"JAVA_HOME": "/nowhere"}, "JAVA_HOME: there is no /nowhere/bin/java"),
    ],
)
def test_a_wrong_setting_stops_the_launcher_and_is_named(store: Path, env: dict[str, str], words: str) -> None:
    server = TorchServeProcess(store, env=env)
    try:
        with pytest.raises(RuntimeError, match=re.escape(words)):
            server.start()
    finally:
        server.remove()
