"""The health check of the gateway's image asks a gateway as its settings have it."""

import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from tests.certificates import Files
from tests.gateway import GatewayProcess
from tests.odd_archive import make_odd_store
from tests.stack import gateway_of_workers
from tests.torchserve_process import ROOT


def check(**env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "deploy" / "healthcheck.py")]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("hosts", [None, "gateway.example, localhost"])
def test_it_is_healthy_once_it_is_ready(tmp_path: Path, has_tls: bool, hosts: str | None) -> None:
    files = Files(tmp_path, trustme.CA())
    files.issue()
    (tmp_path / "empty").mkdir()
    env = {**(files.env if has_tls else {}), **({"TORCHGATE_ALLOWED_HOSTS": hosts} if hosts else {})}
    with GatewayProcess(TORCHGATE_MODEL_STORE=str(tmp_path / "empty"), **env) as gateway:
        port = gateway.url.rpartition(":")[2]
        found = check(TORCHGATE_PORT=port, **env)
        assert (found.returncode, "/readyz answers 503" in found.stderr) == (1, True), found.stderr
    found = check(TORCHGATE_PORT=port, **env)
    assert (found.returncode, "does not answer" in found.stderr) == (1, True), found.stderr


def test_it_is_healthy_with_a_version(tmp_path: Path) -> None:
    gateway = gateway_of_workers(make_odd_store(tmp_path / "store"), TORCHGATE_WORKERS_PER_VERSION="1")
    with gateway:
        gateway.until_ready()
        assert check(TORCHGATE_PORT=gateway.url.rpartition(":")[2]).returncode == 0
