"""A process of several ends with its own status, whatever other threads do with tensors meanwhile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.artifacts import Run

ROOT = Path(__file__).resolve().parents[3]
# Ended by Python while it asks for the lock in C++, this thread takes the process with it, as one of Gloo's would.
WORKS_FOR_EVER = """
import atexit, os, runpy, sys, threading, torch
def work():
    ones = torch.ones(10)
    while True:
        ones + ones
threading.Thread(target=work, daemon=True).start()
"""
LEAVES = """
from training.parallel.process_exit import leave_after, leave_early
def main():
    leave_early()
    atexit.register(print, "and tidied")
    print("done")
    {end}
leave_after(main)
"""
COMMAND = "sys.argv[1:] = {!r}; runpy.run_module('training', run_name='__main__')"


def leaving(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WORKS_FOR_EVER + code],
        cwd=ROOT, env={**os.environ, **environment}, timeout=120, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("return 0", 0, ""),
        ("return 3", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(2)", 2, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("raise ValueError('why')", 1, "ValueError: why\n"),
    ],
)
def test_its_status_is_kept_and_nothing_it_says_is_lost(end: str, status: int, told: str) -> None:
    left = leaving(LEAVES.format(end=end))
    assert (left.returncode, left.stdout) == (status, "done\nand tidied\n"), left.stderr
    assert left.stderr.endswith(told)


def test_nobody_has_to_be_there_to_hear_it() -> None:
    left = leaving(LEAVES.format(end="here, there = os.pipe(); os.close(here); os.dup2(there, 1); return 3"))
    assert left.returncode == 3, left.stderr


def test_a_strategys_process_leaves_that_way(run: Run) -> None:
    command = ["train", "--run", str(run.folder), "--strategy", "ddp", "--epochs", "1"]
    left = leaving(COMMAND.format(command), RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    assert left.returncode == 0, left.stderr
    assert left.stdout.splitlines()[-1].startswith("kept epoch 1")
