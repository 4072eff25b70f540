"""What a worker's process is started with, by the gateway and by TorchServe."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.backends.embedded import allocator
from service.backends.embedded.allocator import MALLOC, PRELOAD, TCMALLOC, find_allocator, memory_environment
from service.backends.embedded.process import Launcher

TORCHSERVE_WORKER = Path(__file__).resolve().parents[4] / "deploy" / "torchserve-worker.sh"
SHOW = "import json, os; print(json.dumps([{name: os.environ.get(name) for name in %r}, os.nice(0)]))"
NAMES = [*MALLOC, *TCMALLOC, PRELOAD, "MALLOC_ARENA_MAX"]


def shown_by_torchserves_worker(**given: str) -> tuple[dict[str, str | None], int]:
    """Return what of its memory a worker of TorchServe finds in its environment, and how nice it is."""
    kept = {name: value for name, value in os.environ.items() if name not in NAMES}
    env = {**kept, "WORKER_PYTHON": sys.executable, **given}
    shown = json.loads(subprocess.check_output([TORCHSERVE_WORKER, "-c", SHOW % NAMES], env=env, text=True))
    return shown[0], shown[1]


def test_what_a_worker_may_know_of_the_gateways_environment(tmp_path: Path) -> None:
    given = {
        "PATH": "/bin",
        "TORCHGATE_API_KEYS": "secret",
        "TORCHGATE_GRAPH_FORM": "fused",
        "MALLOC_TRIM_THRESHOLD_": "7",
        "OMP_NUM_THREADS": "9",
    }
    environment = Launcher("python", 2, given).environment_in(tmp_path)
    assert environment["PATH"] == "/bin"
    assert "TORCHGATE_API_KEYS" not in environment
    assert environment["TORCHGATE_GRAPH_FORM"] == "fused"  # which the handler reads
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "2"
    # Memory is kept between batches, unless somebody wants it otherwise.
    assert environment["MALLOC_MMAP_THRESHOLD_"] == MALLOC["MALLOC_MMAP_THRESHOLD_"]
    assert environment["MALLOC_TRIM_THRESHOLD_"] == "7"
    assert environment.get(PRELOAD) == find_allocator()


@pytest.mark.parametrize("given", ["", "libsomething.so"])
@pytest.mark.parametrize("found", [None, "libtcmalloc_minimal.so.4"])
def test_an_allocator_that_somebody_chose_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, found: str | None
) -> None:
    monkeypatch.setattr(allocator, "find_allocator", lambda: found)
    assert memory_environment().get(PRELOAD) == found
    assert Launcher("python", 1, {PRELOAD: given}).environment_in(tmp_path)[PRELOAD] == given
    if not given:
        assert shown_by_torchserves_worker(**{PRELOAD: given})[0][PRELOAD] == given


def test_torchserves_workers_have_and_keep_their_memory_just_so() -> None:
    shown, niceness = shown_by_torchserves_worker(MALLOC_ARENA_MAX="3")
    expected = {**dict.fromkeys(NAMES), **memory_environment(), "MALLOC_ARENA_MAX": "3"}
    assert shown == expected
    assert niceness == min(os.nice(0) + 10, 19)


@pytest.mark.system
def test_the_allocator_that_make_system_packages_installs_is_found_and_taken() -> None:
    maps = "print(open('/proc/self/maps').read())"
    env = {"PATH": os.environ["PATH"], **memory_environment()}
    done = subprocess.run([sys.executable, "-c", maps], env=env, capture_output=True, text=True, check=True)
    name = find_allocator()
    assert name is not None, "make system-packages installs tcmalloc"
    assert name.startswith("libtcmalloc_minimal")
    assert name in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("\tlibjemalloc.so.2 (libc6,x86-64) => /a\n\tlibtcmalloc_minimal.so.4 (libc6,x86-64) => /b\n", "tcmalloc"),
        ("\tlibtcmalloc_minimal_debug.so.4 (libc6,x86-64) => /a\n\tlibjemalloc.so.2 (libc6) => /b\n", "jemalloc"),
        ("\tlibtcmalloc_minimal.so (libc6,x86-64) => /a\n\tlibjemalloc.so (libc6) => /b\n", None),
        (None, None),
    ],
)
def test_which_allocator_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str | None, expected: str | None
) -> None:
    program = tmp_path / "ldconfig"
    if shown is not None:
        program.write_text(f"#!/bin/sh\ncat <<'END'\n3 libs found\n{shown}END\n")
        program.chmod(0o755)
    monkeypatch.setattr(allocator, "LDCONFIG", str(program))
    found = find_allocator.__wrapped__()
    assert expected == (None if found is None else found.removeprefix("lib").split("_")[0].split(".")[0])
