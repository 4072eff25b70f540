"""The three places of a setting, flag, environment and torchgate.toml, through the command line."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from service.config.settings import SECRETS, Settings
from tests import command_line
from tests.gateway import GatewayProcess

SECRET = "correct-horse-battery"
STORE = {"TORCHGATE_MODEL_STORE": "."}


def torchgate(folder: Path, *arguments: str, status: int = 0, **env: str) -> str:
    """Run one command in a folder and return what it prints."""
    done = command_line.torchgate(*arguments, status=status, folder=folder, **env)
    return done.stdout + done.stderr


def listed(folder: Path, *arguments: str, **env: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(torchgate(folder, "settings", "--json", *arguments, status=0, **env))
    return document


def write(folder: Path, *lines: str, mode: int = 0o644) -> Path:
    path = folder / "torchgate.toml"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(mode)
    return path


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    write(tmp_path, "port = 9001", "max_images = 101", "deadline_ms = 5001", "reads_need_key = false")
    env = {"TORCHGATE_PORT": "9002", "TORCHGATE_MAX_IMAGES": "102", "TORCHGATE_DEFAULT_MODEL": ""}
    found = listed(tmp_path, "--port", "9003", "--tracing-sample-ratio=0.5", **env)
    shown = {name: (found[name]["value"], found[name]["source"]) for name in found}
    assert shown["port"] == (9003, "flag")
    assert shown["tracing_sample_ratio"] == (0.5, "flag")
    assert shown["max_images"] == (102, "environment")
    assert shown["deadline_ms"] == (5001, "torchgate.toml")
    assert shown["reads_need_key"] == (False, "torchgate.toml")
    assert shown["max_batch_size"] == (32, "default")
    assert shown["default_model"] == (None, "default")
    text = torchgate(tmp_path, "settings", "--port", "9003", status=0, **env)
    assert "TORCHGATE_PORT=9003  (flag; default 8000)" in text
    assert "TORCHGATE_MAX_IMAGES=102  (environment; default 256)" in text
    assert "TORCHGATE_DEADLINE_MS=5001  (torchgate.toml; default 10000)" in text
    assert "TORCHGATE_MAX_BATCH_SIZE=32  (default)" in text


def test_an_empty_flag_is_the_default(tmp_path: Path) -> None:
    found = listed(tmp_path, "--trusted-proxies", "", "--port=", TORCHGATE_TRUSTED_PROXIES="::1", TORCHGATE_PORT="9")
    assert (found["trusted_proxies"]["value"], found["trusted_proxies"]["source"]) == (None, "flag")
    assert found["port"]["value"] == 8000


@pytest.mark.parametrize("verb", ["serve", "check", "settings"])
def test_every_setting_but_secrets_has_a_flag_in_a_group(tmp_path: Path, verb: str) -> None:
    shown = torchgate(tmp_path, verb, "--help", COLUMNS="100")
    words = set(shown.replace(",", " ").split())
    flags = {name: f"--{name.replace('_', '-')}" for name in Settings.model_fields}
    assert {flags[name] for name in flags if name not in SECRETS} <= words
    assert not words & {flags[name] for name in SECRETS}
    assert "Network:" in shown
    assert "Port that the gateway listens on." in shown


def test_a_wrong_value_is_named_by_its_place(tmp_path: Path) -> None:
    write(tmp_path, 'log_level = "loud"', "max_images = 2000")
    told = torchgate(tmp_path, "check", "--port", "none", status=2, TORCHGATE_BACKEND="magic")
    assert "--port='none': " in told
    assert "torchgate.toml:log_level='loud': " in told
    assert "TORCHGATE_BACKEND='magic': " in told
    told = torchgate(tmp_path, "check", "--log-level=info", "--max-queue-items", "1000", status=2)
    assert "torchgate.toml:max_images=2000 must not exceed --max-queue-items=1000" in told
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = torchgate(tmp_path, "check", "--log-level=info", "--max-images=1", "--port", port, status=2, **STORE)
    assert f"cannot listen on 127.0.0.1:{port}" in told
    assert "--port" in told


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (("prt = 8080",), "torchgate.toml: prt: there is no such setting. Did you mean port?"),
        (("max-images = 8",), "torchgate.toml: max-images: there is no such setting. Did you mean max_images?"),
        (("[network]", "port = 1"), "torchgate.toml: network: there is no such setting."),
        (("processes = 2",), "It was removed"),
        (("port = [8080]",), "torchgate.toml: port: "),
        (("port = true",), "torchgate.toml:port='true': "),
        (("port 8080",), "torchgate.toml: "),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, lines: tuple[str, ...], named: str) -> None:
    write(tmp_path, *lines)
    assert named in torchgate(tmp_path, "check", status=2)


def test_another_file_can_be_named_and_must_be_there(tmp_path: Path) -> None:
    write(tmp_path, "port = 9001")
    (other := tmp_path / "other.toml").write_text("port = 9002\n")
    by_variable = listed(tmp_path, TORCHGATE_CONFIG="other.toml")["port"]
    assert (by_variable["value"], by_variable["source"]) == (9002, "other.toml")
    by_flag = listed(tmp_path, "--config", str(other), TORCHGATE_CONFIG="nowhere.toml")["port"]
    assert (by_flag["value"], by_flag["source"]) == (9002, str(other))
    told = torchgate(tmp_path, "check", "--config", "nowhere.toml", status=2)
    assert "--config=nowhere.toml: No such file" in told
    told = torchgate(tmp_path, "serve", status=2, TORCHGATE_CONFIG="nowhere.toml")
    assert "TORCHGATE_CONFIG=nowhere.toml: No such file" in told


def test_a_secret_has_no_flag_and_is_not_shown(tmp_path: Path) -> None:
    for given in (("--admin-token", SECRET), (f"--admin-token={SECRET}",)):
        told = torchgate(tmp_path, "serve", *given, status=2)
        assert "--admin-token-file" in told
        assert "TORCHGATE_ADMIN_TOKEN" in told
        assert SECRET not in told
    (tmp_path / "token").write_text(SECRET)
    found = listed(tmp_path, "--admin-token-file", "token", TORCHGATE_ADMIN_TOKEN="the-token-of-the-environment")
    assert (found["admin_token"]["value"], found["admin_token"]["source"]) == ("(set)", "flag")


def test_a_file_with_a_secret_must_be_its_users_own(tmp_path: Path) -> None:
    write(tmp_path, f'admin_token = "{SECRET}"')
    told = torchgate(tmp_path, "check", status=2)
    assert "torchgate.toml: it holds admin_token, and others can read it; run chmod go-rwx torchgate.toml" in told
    assert SECRET not in told
    write(tmp_path, f'admin_token = "{SECRET}"', mode=0o600)
    text = torchgate(tmp_path, "settings", "--json")
    assert json.loads(text)["admin_token"]["source"] == "torchgate.toml"
    assert SECRET not in text
    # The environment's file replaces the file's own value: they are one setting.
    (tmp_path / "token").write_text(SECRET)
    assert listed(tmp_path, TORCHGATE_ADMIN_TOKEN_FILE="token")["admin_token"]["source"] == "environment"


def test_a_file_that_anybody_can_write_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "port = 9001", mode=0o666)
    assert "torchgate.toml: anybody can write into it; run chmod o-w" in torchgate(tmp_path, "check", status=2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_must_be_named(tmp_path: Path) -> None:
    os.chown(write(tmp_path, "port = 9001"), 65534, 65534)
    assert "torchgate.toml: it is another user's" in torchgate(tmp_path, "check", status=2)
    assert listed(tmp_path, "--config", "torchgate.toml")["port"]["value"] == 9001


def test_a_misspelt_flag_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    assert "--max-image: there is no such flag. Did you mean --max-images?" in torchgate(
        tmp_path, "check", "--max-image", "8", status=2
    )
    told = torchgate(tmp_path, "check", f"--flux={SECRET}", status=2)
    assert "unrecognized arguments: --flux" in told
    assert SECRET not in told


def test_it_serves_a_folder_by_flags_and_the_state_is_found_by_the_file(tmp_path: Path) -> None:
    (store := tmp_path / "store").mkdir()
    told = torchgate(tmp_path, "serve", "nowhere", "--port=0", status=2)
    assert "--model-store=nowhere: " in told
    assert "STORE" in torchgate(tmp_path, "serve", "store", "--model-store", "store", status=2)
    gateway = GatewayProcess(TORCHGATE_MODEL_STORE="/nowhere")
    gateway.command += [str(store), "--default-model", "digits"]
    with gateway:
        assert gateway.get("/healthz").status_code == 200  # with the variable's folder it would not have started
    write(tmp_path, f'model_store = "{store}"')
    for named in ((), ("--config", "torchgate.toml")):
        told = torchgate(tmp_path, "state", "backup", "copy.db", *named, status=1)
        assert str(store / "torchgate.db") in told
