"""`torchgate check`: one line for each thing, with the next step; its status says whether `serve` would start."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from service.doctor import machine
from tests.command_line import torchgate
from tests.signing import new_key, sign, trust
from tests.stores import make_store

VERSIONS = (("digits", "1.0", "fp32"), ("digits", "1.0", "int8-dynamic"))
WITH_TORCHSERVE: dict[str, Any] = {"TORCHGATE_WITH_TORCHSERVE": "true", "TORCHGATE_BACKEND": "grpc"}


def check(
    store: Path, *arguments: str, before: str = "", status: int = 0, **env: Any
) -> subprocess.CompletedProcess[str]:
    places = {"TORCHGATE_MODEL_STORE": str(store), "TORCHGATE_PORT": "0", **env}
    return torchgate("check", *arguments, before=before, status=status, **places)


def checks(store: Path, *arguments: str, status: int = 0, before: str = "", **env: Any) -> dict[str, dict[str, Any]]:
    document = json.loads(check(store, *arguments, "--json", status=status, before=before, **env).stdout)
    return {each["subject"]: each for each in document["checks"]}


def test_a_machine_that_is_well_has_a_line_for_each_thing(tmp_path: Path) -> None:
    make_store(tmp_path, VERSIONS)
    done = check(tmp_path, "--log-level", "info", TORCHGATE_WORKERS_PER_VERSION="1")
    assert done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ok"] * 9, done.stdout
    assert "3 from environment, 1 from flag, of " in done.stdout
    assert f"2 archives of digits in {tmp_path}" in done.stdout
    assert f"sqlite:///{tmp_path}/torchgate.db" in done.stdout
    assert "2 workers of 2 versions need about 0.6 GB" in done.stdout
    assert "Java" not in done.stdout
    found = json.loads(check(tmp_path, "--json", TORCHGATE_WORKERS_PER_VERSION="1").stdout)
    assert (found["state"], len(found["checks"])) == ("ok", 9)


def test_every_fault_is_told_at_once_and_in_one_line_each(tmp_path: Path) -> None:
    make_store(tmp_path, VERSIONS)
    (tmp_path / "file").touch()
    (tmp_path / "torchgate.db").write_text("no database")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        env = {"TORCHGATE_PORT": str(taken.getsockname()[1]), "TORCHGATE_TOKEN_DIR": str(tmp_path / "file")}
        done = check(tmp_path, status=2, **env)
        document = json.loads(check(tmp_path, "--json", status=2, **env).stdout)
    state, token, port = done.stderr.splitlines()
    assert "file is not a database" in state
    assert "TORCHGATE_TOKEN_DIR=" in token
    assert "cannot listen on" in port
    shown = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("error")}
    assert shown.keys() == {"state", "admin", "port"}
    assert all(line.endswith("1 fault, see below.") for line in shown.values())
    assert document["state"] == "error"
    assert [each["faults"] for each in document["checks"] if each["state"] == "error"] == [
        [line.removeprefix("torchgate: ")] for line in (state, token, port)
    ]


def test_wrong_settings_are_told_before_anything_else_is_looked_at(tmp_path: Path) -> None:
    done = check(tmp_path, "--max-images", "none", status=2, TORCHGATE_PORT="none")
    assert done.stdout == "error    settings  2 faults, see below.\n"
    assert [line.split("=")[0] for line in done.stderr.splitlines()] == [
        "torchgate: TORCHGATE_PORT",
        "torchgate: --max-images",
    ]


def test_a_store_that_is_empty_damaged_or_lacks_a_file_is_a_warning(tmp_path: Path) -> None:
    empty = checks(tmp_path)["model store"]
    assert (empty["state"], "make train-and-archive" in empty["next_step"]) == ("warning", True)
    make_store(tmp_path, VERSIONS)
    (tmp_path / "digits-1.0.mar").unlink()
    assert "lists digits-1.0.mar, which is not there" in checks(tmp_path)["model store"]["found"]
    (tmp_path / "manifest.json").write_text("{")
    damaged = checks(tmp_path)["model store"]
    assert (damaged["state"], "manifest.json: " in damaged["found"]) == ("warning", True)
    missing = checks(tmp_path / "nowhere", status=2, TORCHGATE_DATABASE_URL=f"sqlite:///{tmp_path}/state.db")
    assert "there is no such folder" in missing["model store"]["faults"][0]


def test_a_manifest_that_no_trusted_key_has_signed_is_a_warning(tmp_path: Path) -> None:
    store, key = tmp_path / "store", new_key()
    make_store(store, VERSIONS)
    env: dict[str, Any] = {
        "TORCHGATE_TRUSTED_KEYS_DIR": str(trust(tmp_path / "keys", key)),
        "TORCHGATE_DATABASE_URL": f"sqlite:///{tmp_path}/state.db",
    }
    assert "(unsigned)" in checks(store, **env)["model store"]["found"]
    sign(store, key, 1, days=-1)
    assert "signature ended at" in checks(store, **env)["model store"]["found"]
    sign(store, key, 1)
    assert checks(store, **env)["model store"]["state"] == "ok"


def test_java_is_looked_for_only_where_torchserve_is_started_beside_the_gateway(tmp_path: Path) -> None:
    make_store(tmp_path, VERSIONS)
    assert checks(tmp_path, **WITH_TORCHSERVE)["Java"]["state"] == "ok"
    done = check(tmp_path, status=2, JAVA_HOME="/nowhere", **WITH_TORCHSERVE)
    assert "torchgate: JAVA_HOME: there is no /nowhere/bin/java" in done.stderr
    assert "BACKEND=workers" in done.stderr
    env: dict[str, Any]
    for env in ({}, {**WITH_TORCHSERVE, "TORCHGATE_BACKEND": "workers"}):
        assert "Java" not in checks(tmp_path, JAVA_HOME="/nowhere", **env)


def test_more_workers_than_the_machine_has_cores_or_memory_for(tmp_path: Path) -> None:
    make_store(tmp_path, VERSIONS)
    env: dict[str, Any] = dict.fromkeys(("TORCHGATE_WORKERS_PER_VERSION", "TORCHGATE_MAX_WORKERS_PER_VERSION"), "256")
    found = checks(tmp_path, **env, TORCHGATE_BACKEND="workers")
    assert found["processor"]["state"] == "warning"
    assert "512 workers of 2 versions need about 153.6 GB" in found["memory"]["found"]
    elsewhere = checks(tmp_path, **env, TORCHGATE_TORCHSERVE_HOST="192.0.2.1")
    assert (elsewhere["processor"]["state"], elsewhere["memory"]["state"]) == ("ok", "ok")


def test_a_low_limit_of_open_files(tmp_path: Path) -> None:
    found = checks(tmp_path, before="ulimit -n 1000; ")["descriptors"]
    assert (found["state"], "1,000 let only 744 clients connect" in found["found"]) == ("warning", True)
    assert checks(tmp_path, "--max-connections", "512", before="ulimit -n 1000; ")["descriptors"]["state"] == "ok"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("flags\t\t: fpu sse2 avx2 avx512f avx512_vnni", "AVX-512 with VNNI"),
        ("flags\t\t: fpu sse2 avx2 avx512f", "AVX-512 without VNNI"),
        ("flags\t\t: fpu sse2 avx2", "AVX2"),
        ("Features\t: fp asimd asimddp", "NEON with dot products"),
        ("flags\t\t: fpu", "no known vector instructions"),
    ],
)
def test_the_capability_of_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, named: str) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    assert machine.capability() == named


def test_the_cores_that_a_container_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CPU_QUOTA", tmp_path / "cpu.max")
    unlimited = machine.usable_cores()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.usable_cores() == unlimited
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert machine.usable_cores() == 0.5
