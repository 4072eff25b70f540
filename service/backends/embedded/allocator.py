"""The memory allocator that workers are started with: one that puts a batch's tensors where the last one's lay.

glibc's searches and joins free pieces for every tensor of a pass, and hands out others each time, which are in no
cache. PyTorch's tuning guide names tcmalloc and jemalloc instead.
"""

import re
import subprocess
from functools import cache

LDCONFIG = "/sbin/ldconfig"
LDCONFIG_SECONDS = 10
# As the loader's cache has them, the better one first.
ALLOCATORS = (re.compile(r"^\s(libtcmalloc_minimal\.so\.\d+) ", re.M), re.compile(r"^\s(libjemalloc\.so\.\d+) ", re.M))
PRELOAD = "LD_PRELOAD"
# Where there is neither. Without them, glibc gives what a batch freed back to the kernel, which then clears every page
# of it for the next one: a fifth of a core and more for batches of 48 and 64 small images. What a batch needed, the
# next one will need again.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(256 * 1024 * 1024), "MALLOC_TRIM_THRESHOLD_": str(512 * 1024 * 1024)}
# The same for tcmalloc, which gives back bit by bit.
TCMALLOC = {"TCMALLOC_RELEASE_RATE": "0"}


@cache
def find_allocator() -> str | None:
    """Return the first of the allocators that the system's loader knows, as it names it; asks once.

    Not by ctypes.util.find_library, which goes on to ask a compiler for what the loader does not know.
    """
    try:
        shown = subprocess.run(
            [LDCONFIG, "-p"], capture_output=True, text=True, timeout=LDCONFIG_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):  # no glibc here, or none of its programs
        return None
    return next((found[1] for pattern in ALLOCATORS if (found := pattern.search(shown))), None)


def memory_environment() -> dict[str, str]:
    """Return the variables for a worker's memory, for what is set already to win over: an empty LD_PRELOAD, too."""
    allocator = find_allocator()
    return MALLOC | TCMALLOC | ({} if allocator is None else {PRELOAD: allocator})
