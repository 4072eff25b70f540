"""All tests of this folder again and again, with new examples each time.

`TORCHGATE_TEST_FUZZ_SECONDS` is how long, 3,600 unless it is set; a round that has begun is ended. What fails is
printed with its example: it becomes an `@example` of its test.
"""

import collections
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("TORCHGATE_TEST_FUZZ_SECONDS", "3600"))
LONGEST_ROUND_SECONDS = 1200.0
COMMAND = (sys.executable, "-m", "pytest", "-q", "-m", "not soak", "-p", "no:cacheprovider", "--show-capture=no")


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + LONGEST_ROUND_SECONDS + 60)
def test_new_examples_find_nothing(tmp_path: Path) -> None:
    counts_file = tmp_path / "counts"
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        ended = subprocess.run(
            [*COMMAND, str(Path(__file__).parent)],
            env={**os.environ, "TORCHGATE_TEST_FUZZ_COUNTS": str(counts_file)},
            capture_output=True,
            text=True,
            timeout=LONGEST_ROUND_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-2000:]
    counts: collections.Counter[str] = collections.Counter()
    for line in counts_file.read_text().splitlines():
        name, _, number = line.rpartition(" ")
        counts[name] += int(number)
    assert counts, "no example was counted"
    print("\nexamples:", *(f"{number:>9} {name}" for name, number in sorted(counts.items())), sep="\n")
