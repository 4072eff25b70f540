"""The Python blocks of the documentation run as they stand, one after the other, against a real gateway."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway import TOKEN
from tests.stack import Trained, gateway_of_workers
from tests.torchserve_process import ROOT

PAGES = ("README.md", "docs/how-to/use/python.md")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)  # one with a title says why it does not run


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_run(trained: Trained, page: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    with gateway_of_workers(trained.store, TORCHGATE_DATABASE_URL=f"sqlite:///{tmp_path}/state.db") as gateway:
        gateway.until_every_version_is_ready()
        # The tests' model stands in for the default one.
        script = "\n".join(blocks).replace("http://localhost:8000", gateway.url).replace('"digits"', '"synthetic"')
        script = script.replace('(answer, "7")', "(answer, answer.label)")
        env = {**os.environ, "TORCHGATE_URL": gateway.url, "TORCHGATE_ADMIN_TOKEN": TOKEN}
        command = [sys.executable, "-W", "error", "-c", script]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 2
