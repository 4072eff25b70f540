"""The command line, as a process."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.gateway import GatewayProcess

ROLL_BACK = ("traffic", "rollback", "digits")


def torchgate(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_wrong_setting_stops_it_before_it_listens() -> None:
    done = torchgate("serve", TORCHGATE_PORT="none")
    assert done.returncode == 2
    assert "TORCHGATE_PORT='none'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_instance_on_the_same_port_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for verb in ("serve", "check"):
            done = torchgate(verb, TORCHGATE_PORT=port)
            assert done.returncode == 2
            assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
            assert "TORCHGATE_PORT" in done.stderr
            assert "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["no.such.host.invalid", "ä" * 70])
def test_a_host_that_is_none_is_named(host: str) -> None:
    done = torchgate("check", TORCHGATE_HOST=host)
    assert done.returncode == 2
    assert "TORCHGATE_HOST" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_free_port_passes_the_check(tmp_path: Path) -> None:
    done = torchgate("check", TORCHGATE_PORT="0", TORCHGATE_MODEL_STORE=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []  # nothing is left by the look


@pytest.mark.parametrize("verb", ["check", "serve", "settings"])
def test_a_setting_that_does_not_exist_is_named_with_the_one_that_was_meant(verb: str) -> None:
    done = torchgate(verb, TORCHGATE_BACKND="workers", TORCHGATE_PORT="0")
    assert done.returncode == 2
    assert "TORCHGATE_BACKND: there is no such setting. Did you mean TORCHGATE_BACKEND?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["check", "serve"])
def test_a_database_that_cannot_work_stops_it_before_it_listens(verb: str) -> None:
    done = torchgate(verb, TORCHGATE_DATABASE_URL="mysql://me:hidden@host/state", TORCHGATE_PORT="0")
    assert done.returncode == 2
    assert "TORCHGATE_DATABASE_URL=mysql://me:***@host/state" in done.stderr
    assert "sqlite:////folder/file.db or postgresql://" in done.stderr
    assert "hidden" not in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_are_listed() -> None:
    done = torchgate("settings", TORCHGATE_PORT="9001")
    assert done.returncode == 0
    assert "TORCHGATE_PORT=9001  (environment; default 8000)" in done.stdout


def test_a_folder_without_room_for_the_token_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = torchgate("check", TORCHGATE_PORT="0", TORCHGATE_TOKEN_DIR=str(tmp_path / "file"))
    assert done.returncode == 2
    assert f"TORCHGATE_TOKEN_DIR={tmp_path / 'file'}: " in done.stderr
    assert "TORCHGATE_ADMIN_TOKEN" in done.stderr


def test_without_a_token_one_is_made_that_the_command_line_finds(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    env = {"TORCHGATE_ADMIN_TOKEN": "", "TORCHGATE_TOKEN_DIR": str(folder)}
    with GatewayProcess(TORCHGATE_MODEL_STORE=str(tmp_path), **env) as gateway:
        here = {**env, "TORCHGATE_URL": gateway.url}
        token = torchgate("token", **here).stdout.strip()
        (file,) = folder.iterdir()
        assert (file.read_text().strip(), file.stat().st_mode & 0o777) == (token, 0o600)
        assert token not in gateway.log
        url = f"{gateway.url}/models/digits/labels/stable"
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {token}"}, 428)):
            assert httpx.delete(url, headers=headers, trust_env=False).status_code == status
        # Allowed, so the state is missing, which an empty store has not; by another name of this machine, too.
        for name in (gateway.url, gateway.url.replace("127.0.0.1", "localhost")):
            assert "state_unavailable" in torchgate(*ROLL_BACK, **{**here, "TORCHGATE_URL": name}).stderr
        elsewhere = torchgate("token", **{**here, "TORCHGATE_URL": "http://192.0.2.1:8000"})
        assert (elsewhere.returncode, "another machine" in elsewhere.stderr) == (1, True)
        stranger = torchgate("token", **{**here, "TORCHGATE_TOKEN_DIR": str(tmp_path / "mine")})
        assert (stranger.returncode, "mine" in stranger.stderr) == (1, True)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("verb", ["check", "serve"])
def test_a_place_that_is_missing_or_closed_stops_it_before_it_listens(tmp_path: Path, verb: str) -> None:
    state, store = tmp_path / "state", tmp_path / "store"
    store.mkdir()
    url = f"sqlite:///{state}/state.db"
    env = {"TORCHGATE_PORT": "0", "TORCHGATE_ADMIN_TOKEN": "a-token-of-this-test", "TORCHGATE_DATABASE_URL": url}
    done = torchgate(verb, TORCHGATE_MODEL_STORE=str(store), **env)
    assert done.returncode == 2
    assert f"TORCHGATE_DATABASE_URL={url}: there is no folder {state}" in done.stderr
    state.mkdir()
    done = torchgate(verb, TORCHGATE_MODEL_STORE=str(tmp_path / "nowhere"), **env)
    assert done.returncode == 2
    assert f"TORCHGATE_MODEL_STORE={tmp_path / 'nowhere'}: there is no such folder. Make it" in done.stderr
    (state / "state.db").write_text("no database")
    done = torchgate(verb, TORCHGATE_MODEL_STORE=str(store), **env)
    assert done.returncode == 2
    assert f"TORCHGATE_DATABASE_URL={url}: " in done.stderr
    assert "file is not a database" in done.stderr


def test_it_starts_alone_logs_json_and_stops(tmp_path: Path) -> None:
    gateway = GatewayProcess(TORCHGATE_MODEL_STORE=str(tmp_path))
    with gateway:
        assert httpx.get(f"{gateway.url}/healthz", trust_env=False).json() == {"status": "ok", "reason": ""}
        waiting = httpx.get(f"{gateway.url}/readyz", trust_env=False)
        assert waiting.status_code == 503
        missing = httpx.get(f"{gateway.url}/nowhere", trust_env=False, headers={"X-Request-Id": "abc"})
        assert missing.status_code == 404
        assert gateway.stop() in {0, -signal.SIGTERM}
        (line,) = [record for record in gateway.records() if record["message"] == "request"]
    assert line["request_id"] == "abc"
    assert (line["route"], line["code"], line["error_code"]) == ("unmatched", 404, "route_not_found")
    assert line["duration_ms"] > 0
    assert gateway.process is not None


def test_a_gateway_that_was_held_up_answers_what_came_meanwhile(tmp_path: Path) -> None:
    env = {"TORCHGATE_BACKEND": "workers", "TORCHGATE_MODEL_STORE": str(tmp_path)}
    env["TORCHGATE_WATCHDOG_SECONDS"] = "1"  # who was held up for longer does not hang
    with GatewayProcess(TORCHGATE_KEEP_ALIVE_SECONDS="1", **env) as gateway, contextlib.ExitStack() as stack:
        assert gateway.process is not None
        clients = [http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=10) for _ in range(32)]
        for client in clients:
            stack.callback(client.close)
            client.request("GET", "/healthz")
            client.getresponse().read()
        gateway.process.send_signal(signal.SIGSTOP)
        try:
            for client in clients:
                client.request("GET", "/healthz")
            time.sleep(1.5)  # longer than an idle connection is kept: the time itself is what is tested
        finally:
            gateway.process.send_signal(signal.SIGCONT)
        answers = [client.getresponse() for client in clients]
        assert all(answer.status == 200 and b"ok" in answer.read() for answer in answers)
        assert clients[0].sock.recv(1) == b""  # who asks no more is hung up on


def test_a_connection_is_kept_as_long_as_it_is_used(tmp_path: Path) -> None:
    env = {"TORCHGATE_BACKEND": "workers", "TORCHGATE_MODEL_STORE": str(tmp_path)}
    with GatewayProcess(TORCHGATE_KEEP_ALIVE_SECONDS="1", **env) as gateway, contextlib.ExitStack() as stack:
        client = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=10)
        stack.callback(client.close)
        client.connect()
        first = client.sock
        for _ in range(6):  # together longer than an idle one is kept: the time itself is what is tested
            client.request("GET", "/healthz")
            assert client.getresponse().read()
            time.sleep(0.4)
        assert client.sock is first
        assert first.recv(1) == b""
