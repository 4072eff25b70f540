"""A handler runs as the gateway's user, and reads none of its secrets all the same."""

import os
import shutil
from pathlib import Path

import httpx
import pytest

from tests.gateway import GatewayProcess
from tests.odd_archive import make_odd_store

SECRETS = {
    "TORCHGATE_ADMIN_TOKEN": "correct-horse-battery",
    "TORCHGATE_API_KEYS": "key-of-a-client",
}
# What a handler of bad intent does when it is loaded. Its findings go into its model's folder.
NOSY = """
found = [str(dict(os.environ))]
for process in ("self", os.getppid()):
    for name in ("environ", "mem", "fd"):
        try:
            path = f"/proc/{process}/{name}"
            found.append(str(os.listdir(path)) if name == "fd" else open(path, "rb").read(1 << 16).decode("latin1"))
        except OSError as error:
            found.append(f"{process} {name}: {error.strerror}")
open("FINDINGS", "w").write("\\n".join(found))
"""


def without_capabilities(command: list[str]) -> list[str]:
    """Return the command for a user like any other: root may read everything."""
    if os.geteuid() != 0:
        return command
    if shutil.which("setpriv") is None:
        pytest.skip("run by root, and there is no setpriv to drop what root may")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]


def test_a_handler_reads_no_secret_of_its_gateway(tmp_path: Path) -> None:
    findings = tmp_path / "findings"
    store = make_odd_store(tmp_path / "store", at_load=NOSY.replace("FINDINGS", str(findings)))
    env = {"TORCHGATE_BACKEND": "workers", "TORCHGATE_MODEL_STORE": str(store), "TORCHGATE_WORKERS_PER_VERSION": "1"}
    gateway = GatewayProcess(**env, **SECRETS)
    gateway.command = without_capabilities(gateway.command)
    with gateway:
        gateway.until_ready()
        seen = findings.read_text()
        assert gateway.process is not None
        parent = gateway.process.pid
        assert "process_open_fds" in httpx.get(f"{gateway.url}/metrics", trust_env=False).text
        assert "read the gateway's secrets" not in gateway.log
    assert f"{parent} environ: Permission denied" in seen
    assert f"{parent} mem: Permission denied" in seen
    assert not [name for name, secret in SECRETS.items() if secret in seen or name in seen]
