"""One command, its time and its memory: `python -m benchmarks.training.peak LIMIT_SECONDS LOG COMMAND...`.

It is a small process of its own, because the kernel's peak memory includes what a process held before it became the
command.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run(limit_seconds: float, log: Path, command: Sequence[str]) -> dict[str, Any]:
    """Run the command; return its status, seconds, and the most memory that one of its processes had.

    It and all that it started are killed when the limit has passed.
    """
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        timer = threading.Timer(limit_seconds, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would look for it again
        finally:
            timer.cancel()
    return {
        "status": process.returncode,
        "seconds": time.monotonic() - started,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


if __name__ == "__main__":
    print(json.dumps(run(float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
