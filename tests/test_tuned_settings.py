"""What `make serve` takes from a file of the model store: known names and values, and nothing is run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.tune import FORM, LIMIT, OPENMP, THREADS, WORKERS, settings_file
from deploy.tuned_settings import ALLOWED
from handlers.graph_forms import FORMS
from tests.torchserve_process import ROOT


def started(folder: Path, content: str | None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `env`, which prints its environment, with the file's settings."""
    path = folder / "tuned.env"
    if content is not None:
        path.write_text(content)
    command = [sys.executable, str(ROOT / "deploy/tuned_settings.py"), str(path), "env"]
    own = {"PATH": os.environ["PATH"], **env}
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=30, check=False)


def test_what_tune_writes_is_taken_and_the_environment_wins(tmp_path: Path) -> None:
    setting = {WORKERS: "2", OPENMP: "1", THREADS: "1", FORM: "fused", LIMIT: "64"}
    done = started(tmp_path, settings_file(setting, "a note"), TORCHGATE_MAX_BATCH_SIZE="8")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {f"{WORKERS}=2", f"{OPENMP}=1", f"{THREADS}=1", f"{FORM}=fused", f"{LIMIT}=8"} <= set(lines)
    assert f"{LIMIT}=64" not in lines


def test_tune_writes_nothing_else() -> None:
    assert set(ALLOWED) == {WORKERS, OPENMP, THREADS, FORM, LIMIT}
    assert all(ALLOWED[FORM].fullmatch(form) for form in FORMS)


def test_without_the_file_the_command_runs_as_it_is(tmp_path: Path) -> None:
    assert started(tmp_path, None, OMP_NUM_THREADS="3").stdout.count("OMP_NUM_THREADS=3") == 1


@pytest.mark.parametrize(
    "line",
    [
        "OMP_NUM_THREADS=1'; touch hacked; '",
        "OMP_NUM_THREADS=$(touch hacked)",
        "x; touch hacked=1",
        "TORCHGATE_WORKER_PYTHON=/tmp/evil",
        "LD_PRELOAD=/tmp/evil.so",
        "OMP_NUM_THREADS=0",
        "OMP_NUM_THREADS=1000000",
        "OMP_NUM_THREADS=1\r",
        "OMP_NUM_THREADS",
        "TORCHGATE_GRAPH_FORM=other",
        " OMP_NUM_THREADS=1",
        "\0",
        "#" * 5000,
    ],
)
def test_any_other_line_stops_the_start_by_its_name(tmp_path: Path, line: str) -> None:
    done = started(tmp_path, f"# a note\nOMP_NUM_THREADS=1\n{line}\n")
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"make serve: {tmp_path / 'tuned.env'}" in done.stderr
    assert ", line 3: " in done.stderr or "larger than 4096 bytes" in done.stderr
    assert "Delete the file" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["tuned.env"]
