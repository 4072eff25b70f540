"""What a worker's process is started with, by the gateway and by TorchServe."""

import os
import subprocess
import sys
from pathlib import Path

from service.workers.process import MALLOC, Launcher

TORCHSERVE_WORKER = Path(__file__).resolve().parents[3] / "deploy" / "torchserve-worker.sh"
SHOW = "import json, os; print(json.dumps([os.environ.get(name) for name in {names!r}] + [os.nice(0)]))"


def test_what_a_worker_may_know_of_the_gateways_environment(tmp_path: Path) -> None:
    given = {"PATH": "/bin", "TORCHGATE_API_KEYS": "secret", "MALLOC_TRIM_THRESHOLD_": "7", "OMP_NUM_THREADS": "9"}
    environment = Launcher("python", 2, given).environment_in(tmp_path)
    assert environment["PATH"] == "/bin"
    assert "TORCHGATE_API_KEYS" not in environment
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "2"
    # Memory is kept between batches, unless somebody wants it otherwise.
    assert environment["MALLOC_MMAP_THRESHOLD_"] == MALLOC["MALLOC_MMAP_THRESHOLD_"]
    assert environment["MALLOC_TRIM_THRESHOLD_"] == "7"


def test_torchserves_workers_keep_their_memory_just_so() -> None:
    names = [*MALLOC, "MALLOC_ARENA_MAX"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    env = {**kept, "WORKER_PYTHON": sys.executable, "MALLOC_ARENA_MAX": "3"}
    shown = subprocess.check_output([TORCHSERVE_WORKER, "-c", SHOW.format(names=names)], env=env, text=True)
    before = os.nice(0)
    assert shown.strip() == str([*MALLOC.values(), "3", min(before + 10, 19)]).replace("'", '"')
