"""One command of `torchgate`, as a process of its own, without the caller's settings."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.torchserve_process import ROOT


def torchgate(
    *arguments: str, status: int = 0, folder: Path = ROOT, before: str = "", **env: Any
) -> subprocess.CompletedProcess[str]:
    """Run it in a folder, after a command of the shell if there is one `before`; it ends with this status."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHGATE_")}
    done = subprocess.run(
        ["bash", "-c", f'{before}exec "$@"', "torchgate", sys.executable, "-m", "service", *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done
