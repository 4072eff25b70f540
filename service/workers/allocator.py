"""The memory allocator that workers are started with: one that puts a batch's tensors where the last one's lay.

glibc's searches and joins free pieces for every tensor of a pass, and hands out others each time, which are in no
cache. PyTorch's tuning guide names these two instead.
"""

from collections.abc import Mapping
from ctypes.util import find_library
from functools import cache

ALLOCATORS = ("tcmalloc_minimal", "jemalloc")  # the better one first
PRELOAD = "LD_PRELOAD"
# Where there is neither. Without them, glibc gives what a batch freed back to the kernel, which then clears every page
# of it for the next one: a fifth of a core and more for batches of 48 and 64 small images. What a batch needed, the
# next one will need again.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(256 * 1024 * 1024), "MALLOC_TRIM_THRESHOLD_": str(512 * 1024 * 1024)}
# The same for tcmalloc, which gives back bit by bit.
TCMALLOC = {"TCMALLOC_RELEASE_RATE": "0"}


@cache
def find_allocator() -> str | None:
    """Return the first of the allocators that the system's loader knows, as it names it; asks once."""
    return next(filter(None, map(find_library, ALLOCATORS)), None)


def memory_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a worker's memory; what `environment` has of them stays, an empty LD_PRELOAD, too."""
    allocator = find_allocator()
    chosen = MALLOC | TCMALLOC | ({} if allocator is None else {PRELOAD: allocator})
    return {name: environment.get(name, value) for name, value in chosen.items()}
