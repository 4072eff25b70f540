"""What the tests of faults share: small disks, files that one gateway alone sees, and how long a recovery took."""

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateway import AUTHORIZATION, GatewayProcess

HEADERS = {"Content-Type": "image/png"}


def predict(gateway: GatewayProcess, body: bytes = b"class:1", **parameters: str) -> httpx.Response:
    """Send one image on a new connection."""
    return httpx.post(
        f"{gateway.url}/predict", content=body, params=parameters, headers=HEADERS, timeout=60, trust_env=False
    )


def put_traffic(gateway: GatewayProcess, weights: dict[str, float]) -> httpx.Response:
    """Set the traffic of the model `odd`, whatever it was."""
    headers = {**AUTHORIZATION, "If-Match": "*"}
    return httpx.put(
        f"{gateway.url}/models/odd/traffic", json={"weights": weights}, headers=headers, timeout=60, trust_env=False
    )


def traffic(gateway: GatewayProcess) -> dict[str, float]:
    """Return the weights of the model `odd`."""
    answer = httpx.get(f"{gateway.url}/models/odd/traffic", headers=AUTHORIZATION, timeout=60, trust_env=False)
    weights: dict[str, float] = answer.json()["weights"]
    return weights


def models(gateway: GatewayProcess) -> str:
    """Return what an operator sees of the model `odd`."""
    return httpx.get(f"{gateway.url}/models/odd", headers=AUTHORIZATION, timeout=60, trust_env=False).text


@contextlib.contextmanager
def recovery(of: str) -> Iterator[None]:
    """Print how long the block takes: `pytest -rP` shows it, and the README's table of faults quotes it."""
    began = time.monotonic()
    yield
    print(f"recovery, {of}: {time.monotonic() - began:.1f} s")


def until(holds: Callable[[], bool], gateway: GatewayProcess, timeout_seconds: float = 60) -> None:
    """Return once `holds`; shows the gateway's log when it does not in time."""
    deadline = time.monotonic() + timeout_seconds
    while not holds():
        assert time.monotonic() < deadline, "\n".join(
            r["message"] for r in gateway.records() if r["message"] != "request"
        )[-4000:] + models(gateway)
        time.sleep(0.05)


def mount_for(gateway: GatewayProcess, *mounts: str) -> None:
    """Have a gateway that has not started yet see these mounts, alone, until it ends; skips where nobody may mount.

    Users who are not root need a namespace of their own for that.
    """
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    inside = ["unshare", "--mount", *as_root, "sh", "-c"]
    script = " && ".join(f"mount {each}" for each in mounts)
    if subprocess.run([*inside, script], capture_output=True, timeout=20, check=False).returncode:
        pytest.skip("nothing can be mounted here, neither as root nor in a user namespace")
    gateway.command = [*inside, f'{script} && exec "$0" "$@"', *gateway.command]


def seen_by(gateway: GatewayProcess, path: Path) -> Path:
    """Return the path that leads to what a gateway with mounts of its own sees at `path`."""
    assert gateway.process is not None
    return Path(f"/proc/{gateway.process.pid}/root{path}")


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Use up a small disk."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 512):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file.write(b"x" * 4096)
    try:
        yield
    finally:
        filler.unlink()
