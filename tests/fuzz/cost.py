"""What a parser may cost: memory and work that grow with its input, not faster."""

import contextlib
import sys
import time
import tracemalloc
from collections.abc import Iterator
from types import FrameType

from tests.fuzz.profile import COUNTS

SLACK_BYTES = 512 * 1024  # caches, compiled patterns, an exception's text
SLACK_CALLS = 20_000
CALLS_PER_BYTE = 8
# Of the processor, and in a soak alone: this machine has other work. A quadratic parser needs far more.
SLACK_SECONDS, SECONDS_PER_BYTE = 2.0, 20e-6


@contextlib.contextmanager
def bounded(
    num_bytes: int, *, bytes_per_byte: float = 8, calls_per_byte: float = CALLS_PER_BYTE, slack_bytes: int = SLACK_BYTES
) -> Iterator[None]:
    """Fail if what runs inside takes more than its input of `num_bytes` is worth: memory at its peak, calls, time."""
    num_calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal num_calls
        num_calls += event in {"call", "c_call"}

    before = sys.getprofile()
    tracemalloc.start()
    started = time.thread_time()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
        seconds = time.thread_time() - started
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak <= slack_bytes + bytes_per_byte * num_bytes, f"{peak} bytes of memory for {num_bytes} of input"
    assert num_calls <= SLACK_CALLS + calls_per_byte * num_bytes, f"{num_calls} calls for {num_bytes} bytes of input"
    if COUNTS is not None:
        assert seconds <= SLACK_SECONDS + SECONDS_PER_BYTE * num_bytes, f"{seconds:.1f} s for {num_bytes} bytes"


def require_short(error: Exception, num_characters: int) -> None:
    """Fail for a text that repeats what was sent."""
    assert len(str(error)) < num_characters
