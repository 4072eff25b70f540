"""The examples for systemd are units that systemd understands, and its own launcher can start a gateway."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.gateway import GatewayProcess
from tests.stores import make_store
from tests.torchserve_process import ROOT, free_ports

pytestmark = pytest.mark.system

UNITS = ROOT / "deploy" / "systemd"


def test_systemd_finds_no_fault_with_the_units(tmp_path: Path) -> None:
    for unit in UNITS.iterdir():
        # Their user and program are not on this machine.
        text = (
            unit.read_text().replace("User=torchgate", "User=root").replace("/opt/torchgate/bin/torchgate", "/bin/sh")
        )
        (tmp_path / unit.name.replace("@", "@a")).write_text(text)
    program = shutil.which("systemd-analyze")
    assert program is not None, "systemd-analyze is missing: make system-packages installs it"
    names = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run([program, "verify", "--man=no", *names], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemds_launcher_starts_a_gateway_by_a_connection(tmp_path: Path) -> None:
    program = shutil.which("systemd-socket-activate")
    assert program is not None, "systemd-socket-activate is missing: make system-packages installs it"
    make_store(tmp_path / "store", (("digits", "1.0", "fp32"),))
    port = free_ports(1)[0]
    process = GatewayProcess(TORCHGATE_MODEL_STORE=str(tmp_path / "store"), TORCHGATE_BACKEND="workers")
    passed = [f"--setenv={name}={value}" for name, value in process.env.items()]
    gateway = [sys.executable, "-m", "tests.fake_gateway", "serve"]
    process.command = [program, f"--listen=127.0.0.1:{port}", "--fdname=http", *passed, *gateway]
    process.launch()
    try:
        while "Listening on" not in process.log:
            assert process.process is not None
            assert process.process.poll() is None, process.log
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=30, trust_env=False).status_code == 200
        with socket.create_connection(("127.0.0.1", port)):
            pass
    finally:
        process.__exit__(None, None, None)
