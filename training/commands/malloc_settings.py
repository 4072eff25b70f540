"""Memory that tensors have freed stays with the process: the next step needs as much again."""

import ctypes
import os
from collections.abc import Mapping

# Of glibc's mallopt(3), whose defaults map each large tensor anew, page by page, and give it back as it is freed.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MEBIBYTE = 2**20


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Have the C library keep what is freed, half a GiB at most at its end; tell whether it does.

    Not where the environment has settings of its own for it, nor with a C library other than glibc.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in environment):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, 256 * MEBIBYTE)) and bool(mallopt(M_TRIM_THRESHOLD, 512 * MEBIBYTE))
