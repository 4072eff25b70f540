"""What a step has freed is there for the next one: no page is cleared by the kernel twice."""

import subprocess
import sys

import pytest

from training.commands.malloc_settings import keep_freed_memory

COUNT = """
import resource, sys
from training.commands.malloc_settings import keep_freed_memory
print(keep_freed_memory({} if sys.argv[1] == "keep" else {"MALLOC_ARENA_MAX": "1"}))
import torch
for _ in range(20):
    torch.ones(8 * 2**20)  # until the heap has grown
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(8 * 2**20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(word: str) -> tuple[bool, int]:
    command = [sys.executable, "-c", COUNT, word]
    said, faults = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return said == "True", int(faults)


def test_pages_are_kept_unless_the_environment_says_otherwise() -> None:
    kept, with_kept = page_faults("keep")
    if not kept:
        pytest.skip("needs glibc")
    left, with_defaults = page_faults("leave")
    assert not left
    # 20 tensors of 8,192 pages each; of huge pages there are fewer.
    assert with_kept * 10 < with_defaults


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_environment_stay(name: str) -> None:
    assert not keep_freed_memory({name: "1"})
