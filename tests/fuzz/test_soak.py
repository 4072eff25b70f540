"""All tests of this folder again and again, with new examples each time; each gets as much of the time as any other.

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
FOLDER = Path(__file__).parent
COMMAND = (sys.executable, "-m", "pytest", "-q", "-m", "not soak", "-p", "no:cacheprovider", "--show-capture=no")


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + LONGEST_ROUND_SECONDS + 60)
def test_new_examples_find_nothing(tmp_path: Path) -> None:
    counts_file = tmp_path / "counts"
    seconds = dict.fromkeys(names_of_tests(), 0.0)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        name = min(seconds, key=lambda each: seconds[each])
        started = time.monotonic()
        ended = run(name, TORCHGATE_TEST_FUZZ_COUNTS=str(counts_file))
        assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-2000:]
        seconds[name] += time.monotonic() - started
    counts: collections.Counter[str] = collections.Counter()
    for line in counts_file.read_text().splitlines():
        name, _, number = line.rpartition(" ")
        counts[name] += int(number)
    assert counts, "no example was counted"
    print("\nexamples:", *(f"{number:>9} {name}" for name, number in sorted(counts.items())), sep="\n")
    left_out = [name for name, spent in seconds.items() if not spent]
    print(f"{len(left_out)} tests had no turn: the time was too short", *left_out, sep="\n")


def names_of_tests() -> list[str]:
    """Return the names of this folder's tests."""
    listed = run("", "--collect-only")
    names = [line.rpartition("/")[2] for line in listed.stdout.splitlines() if "::" in line]
    assert names, listed.stdout + listed.stderr
    return names


def run(name: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a test of this folder, all of them without a name."""
    return subprocess.run(
        [*COMMAND, *options, str(FOLDER / name)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=LONGEST_ROUND_SECONDS,
        check=False,
    )
