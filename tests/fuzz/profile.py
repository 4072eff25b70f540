"""How many examples each test sees: few and always the same ones in `make test`, new ones for an hour in a soak."""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.database import DirectoryBasedExampleDatabase

# In a soak, the file that gets a line of each test's name and its number of examples; see test_soak.py.
COUNTS = os.environ.get("TORCHGATE_TEST_FUZZ_COUNTS")
# Outside the tree: what hypothesis keeps, examples that failed included.
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torchgate" / "hypothesis"
SOAK_FACTOR = 10
SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

set_hypothesis_home_dir(KEPT)


def fuzzed(num_examples: int) -> settings:
    """Return the decorator of a test that sees so many examples in `make test`, and ten times as many in a soak.

    In `make test` they are always the same ones, so that only a change can turn a test red.
    """
    if COUNTS is None:
        return settings(
            max_examples=num_examples,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=SLOW_IS_FINE,
        )
    return settings(
        max_examples=SOAK_FACTOR * num_examples,
        database=DirectoryBasedExampleDatabase(KEPT / "examples"),
        print_blob=True,
        deadline=None,
        suppress_health_check=SLOW_IS_FINE,
    )
