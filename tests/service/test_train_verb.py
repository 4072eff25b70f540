"""`torchgate train` is training's own command line, and says so where training is not installed."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.torchserve_process import ROOT
from training.commands.cli import VERBS


def torchgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service", *arguments]
    # To load torch takes a busy machine a while.
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def test_help_lists_the_stages() -> None:
    done = torchgate("train", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n  {stage} " in done.stdout for stage in VERBS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epoch", "3"], "training pipeline: error: --epoch: there is no such option. Did you mean --epochs?"),
        (["--epochs", "0"], "training pipeline: error: --epochs is 0; allowed is 1 or more"),
        (["train", "--strategy", "ddpp"], "argument --strategy: 'ddpp' is none of single, data-parallel, ddp"),
        (["train", "--run", "/nowhere"], "error: --run: /nowhere is not a folder"),
        (["trian", "--epochs", "3"], "error: there is no stage 'trian'; allowed is one of prepare"),
        (["keys", "show", "/no/where"], "/no/where"),
    ],
)
def test_arguments_reach_the_stage_or_else_the_pipeline(arguments: list[str], message: str) -> None:
    done = torchgate("train", *arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["training", "torch"])
def test_without_the_extra_it_names_what_to_install(tmp_path: Path, missing: str) -> None:
    (tmp_path / "service").symlink_to(ROOT / "service")
    (tmp_path / "torchgate_client").symlink_to(ROOT / "client" / "torchgate_client")
    if missing == "torch":
        (tmp_path / "training").symlink_to(ROOT / "training")
        (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')\n")
    # Without site, nothing leads from the environment's packages to this checkout.
    paths = os.pathsep.join([str(tmp_path), sysconfig.get_paths()["purelib"]])
    done = subprocess.run(
        [sys.executable, "-S", "-m", "service", "train"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "pip install 'torchgate[training]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
