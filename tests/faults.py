"""What the tests of faults share: small disks, lost packets, files that one gateway alone sees, recovery times."""

import contextlib
import ctypes
import errno
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateway import AUTHORIZATION, GatewayProcess
from tests.prometheus import tool

HEADERS = {"Content-Type": "image/png"}
CLONE_NEWNET = 0x40000000


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
    """Print how long the block takes: `pytest -rP` shows it, and the documentation's table of faults quotes it."""
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
def full(disk: Path) -> Iterator[Path]:
    """Use up a small disk; yield the file that does."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 512):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file.write(b"x" * 4096)
    try:
        yield filler
    finally:
        filler.unlink()


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Have this thread, and the threads and processes that it starts meanwhile, in a network with a loopback alone.

    Skips where that is not allowed: only root may leave such a network again.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before:
        if libc.unshare(CLONE_NEWNET):
            pytest.skip(f"no network of its own here: {os.strerror(ctypes.get_errno())}")
        try:
            # Packets of the size that they have on a wire: losing one of 64 KiB would be another fault.
            subprocess.run([tool("ip"), "link", "set", "lo", "mtu", "1500", "up"], check=True, timeout=20)
            yield
        finally:
            assert libc.setns(before.fileno(), CLONE_NEWNET) == 0


@contextlib.contextmanager
def losing(percent: int, *ports: int) -> Iterator[None]:
    """Lose so many of the packets to and from these ports, at random, in a network of its own."""
    drop = f"numgen random mod 100 < {percent} counter drop"
    rules = "\n".join(f"tcp {way} {port} {drop}" for port in ports for way in ("dport", "sport"))
    _nft(f"table inet loss {{\nchain input {{\ntype filter hook input priority 0;\n{rules}\n}}\n}}")
    try:
        yield
        lost = sum(map(int, re.findall(r"counter packets (\d+)", _nft("list table inet loss"))))
        print(f"packets lost: {lost}")
        assert lost, "a fault that did not happen"
    finally:
        _nft("delete table inet loss")


def _nft(command: str) -> str:
    done = subprocess.run(
        [tool("nft"), "--file", "-"], input=command, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
