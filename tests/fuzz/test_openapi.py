"""Requests to every operation of the OpenAPI document, alone and one after the other, on a real gateway over workers.

schemathesis makes them from the document, valid ones and invalid ones, and follows its links. Always: no answer is a
server's error, each status is documented, and body, content type and headers are as documented. schemathesis.toml has
what may be answered beside that, and why.
"""

import collections
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.profile import COUNTS
from tests.gateway import TOKEN, GatewayProcess
from tests.stack import Trained, gateway_of_workers
from tests.torchserve_process import ROOT

KEY = "a-key-of-the-tests"
CREDENTIALS = ("--header", f"Authorization:Bearer {TOKEN}", "--header", f"X-API-Key:{KEY}")
CLOSED = {"TORCHGATE_API_KEYS": KEY, "TORCHGATE_READS_NEED_KEY": "true"}
SOAK_SECONDS = 180  # of each test, in each round


def serving(trained: Trained, **options: str) -> GatewayProcess:
    options |= {
        "TORCHGATE_WORKERS_PER_VERSION": "1",
        "TORCHGATE_MAX_WORKERS_PER_VERSION": "2",
        "TORCHGATE_TRUSTED_PROXIES": "127.0.0.1",  # each request comes from an address of its own
    }
    return gateway_of_workers(trained.store, **options)


def ask(gateway: GatewayProcess, calls: Path, *options: str, num_examples: int) -> collections.Counter[str]:
    """Run schemathesis; return how often each operation was asked. Fails with what it has found."""
    seed = 1 if COUNTS is None else random.getrandbits(32)
    how_much = ("--max-examples", str(num_examples)) if COUNTS is None else ("--max-time", str(SOAK_SECONDS))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", "tests/fuzz/schemathesis.toml", "run"),
            *(f"{gateway.url}/openapi.json", "--no-color", "--seed", str(seed), *how_much, *options),
        ],
        cwd=ROOT,
        env={**os.environ, "TORCHGATE_TEST_CALLS": str(calls)},
        capture_output=True,
        text=True,
        timeout=SOAK_SECONDS + 200,
        check=False,
    )
    found = "\n".join(line[:2000] for line in ended.stdout.splitlines())
    assert ended.returncode == 0, found[-20_000:] + ended.stderr[-2000:] + gateway.log[-2000:]
    assert '"level": "error"' not in gateway.log.lower()
    counts = collections.Counter(line.rpartition(" ")[0] for line in calls.read_text().splitlines())
    if COUNTS is not None:
        with Path(COUNTS).open("a") as file:
            file.writelines(f"test_openapi.py {name} {number}\n" for name, number in counts.items())
    return counts


def operations(gateway: GatewayProcess) -> set[str]:
    paths = gateway.get("/openapi.json").json()["paths"]
    return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


@pytest.mark.timeout(2 * SOAK_SECONDS + 240)
def test_a_gateway_with_keys(trained: Trained, tmp_path: Path) -> None:
    with serving(trained, **CLOSED) as gateway:
        gateway.until_every_version_is_ready()
        counts = ask(gateway, tmp_path / "calls", *CREDENTIALS, num_examples=2)
        assert set(counts) == operations(gateway)
        counts = ask(gateway, tmp_path / "strangers", "--phases", "fuzzing", num_examples=1)
        assert set(counts) == operations(gateway)


@pytest.mark.timeout(SOAK_SECONDS + 240)
def test_a_gateway_without_keys(trained: Trained, tmp_path: Path) -> None:
    with serving(trained) as gateway:
        gateway.until_every_version_is_ready()
        counts = ask(gateway, tmp_path / "calls", num_examples=1)
        assert set(counts) == operations(gateway)
