"""A model that was trained a minute ago, a TorchServe and gateways over it, or over workers of their own."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gateway import GatewayProcess
from tests.torchserve_process import ROOT, TorchServeProcess

# What one session of tests has trained, the next need not train again.
KEPT = ROOT / "build" / "tests"


@dataclass(frozen=True)
class Trained:
    """What the pipeline left."""

    run: Path
    store: Path


def train(folder: Path, *options: str, preset: str = "synthetic", timeout_seconds: float = 200) -> Trained:
    """Run the whole pipeline, on the synthetic preset unless another is named, as a user would."""
    trained = Trained(folder / "runs", folder / "store")
    command = [sys.executable, "-m", "training", "pipeline", "--preset", preset, *options]
    command += ["--runs", str(trained.run), "--model-store", str(trained.store)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = trained.run.iterdir()
    return Trained(run, trained.store)


def trained_once(folder: Path, *options: str, preset: str = "synthetic", timeout_seconds: float = 200) -> Trained:
    """Return a copy of what the pipeline leaves; it runs again only when what it is made of has changed."""
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = KEPT / f"{preset}-{_digest(*options)}"
    with (KEPT / f"{preset}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        if not kept.exists():
            for older in KEPT.glob(f"{preset}-*"):
                shutil.rmtree(older)
            with tempfile.TemporaryDirectory(dir=KEPT) as new:
                train(Path(new), *options, preset=preset, timeout_seconds=timeout_seconds)
                Path(new).rename(kept)
                Path(new).mkdir()  # for the one who removes it
        shutil.copytree(kept, folder, dirs_exist_ok=True)
    (run,) = (folder / "runs").iterdir()
    return Trained(run, folder / "store")


def _digest(*options: str) -> str:
    """Return a short name for everything that decides what a training leaves."""
    digest = hashlib.sha256("\n".join(options).encode())
    digest.update((ROOT / "constraints.txt").read_bytes() + sys.version.encode())
    for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"):
        digest.update(os.environ.get(name, "").encode())
    for room in ("training", "handlers"):
        for path in sorted((ROOT / room).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def gateway_over(torchserve: TorchServeProcess, **env: str) -> GatewayProcess:
    """Return a gateway, not started yet, that speaks to this TorchServe."""
    return GatewayProcess(
        TORCHGATE_MODEL_STORE=str(torchserve.model_store),
        TORCHGATE_TORCHSERVE_GRPC_PORT=str(torchserve.ports["grpc"]),
        TORCHGATE_TORCHSERVE_REST_PORT=str(torchserve.ports["rest"]),
        TORCHGATE_TORCHSERVE_MANAGEMENT_PORT=str(torchserve.ports["management"]),
        TORCHGATE_HEALTH_INTERVAL_SECONDS="0.2",
        TORCHGATE_MAX_BATCH_SIZE="64",
        TORCHGATE_LATENCY_OBJECTIVE_MS="60000",  # one batch of 64 is looked at, however slow the machine
        **env,
    )


def gateway_of_workers(store: Path, **env: str) -> GatewayProcess:
    """Return a gateway, not started yet, that runs its workers itself."""
    options = {
        "TORCHGATE_BACKEND": "workers",
        "TORCHGATE_MODEL_STORE": str(store),
        "TORCHGATE_HEALTH_INTERVAL_SECONDS": "0.2",
        "TORCHGATE_MAX_BATCH_SIZE": "64",
        "TORCHGATE_LATENCY_OBJECTIVE_MS": "60000",
    }
    return GatewayProcess(**options | env)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The synthetic preset, trained once for the session."""
    return trained_once(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="session")
def torchserve(trained: Trained) -> Iterator[TorchServeProcess]:
    """A TorchServe that starts empty; gateways load it."""
    with TorchServeProcess(trained.store) as process:
        yield process


@pytest.fixture(scope="session")
def loaded_torchserve(torchserve: TorchServeProcess) -> TorchServeProcess:
    """The same, once a gateway has loaded it."""
    with gateway_over(torchserve) as process:
        process.until_every_version_is_ready()
    return torchserve


@pytest.fixture(scope="session", params=["grpc", "rest", "workers"])
def gateway(request: pytest.FixtureRequest, trained: Trained) -> Iterator[GatewayProcess]:
    """A gateway by each of the three backends."""
    if request.param == "workers":
        process = gateway_of_workers(trained.store)
    else:
        process = gateway_over(request.getfixturevalue("loaded_torchserve"), TORCHGATE_BACKEND=request.param)
    with process:
        process.until_every_version_is_ready()
        yield process
