"""The memory limit of a worker."""

import os
from dataclasses import dataclass
from pathlib import Path

from service.errors.gateway import BackendFailed

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_bytes() -> int:
    """Return the memory of this container or machine."""
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        try:
            amounts.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # not this version of cgroups, or no limit
            continue
    return min(amounts)


@dataclass(frozen=True)
class MemoryLimit:
    """The setting: a number of bytes for each worker, or 0 for its share of half the memory.

    The other half is for the gateway, the page cache and the next worker of a replacement. A share is never less than
    twice what the worker took when it had loaded: a large model is no leak.
    """

    max_bytes: int

    def allowed_bytes(self, num_workers: int, loaded_bytes: int) -> int:
        """Return the limit of a worker that had `loaded_bytes` after loading."""
        return self.max_bytes or max(machine_bytes() // 2 // max(num_workers, 1), 2 * loaded_bytes)

    def check(self, loaded_bytes: int) -> None:
        """Raise BackendFailed if a worker is over its limit as soon as it has loaded: it would be replaced for ever."""
        if self.max_bytes and loaded_bytes > self.max_bytes:
            raise BackendFailed(
                f"a worker takes {loaded_bytes} bytes as soon as it has loaded; "
                f"TORCHGATE_WORKER_MAX_BYTES allows {self.max_bytes}"
            )
