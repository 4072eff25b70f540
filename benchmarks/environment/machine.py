"""What a run ran on: cores, processor, kernels, allocator, versions. Every result begins with it."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.environment.folders import PYTHON
from service.backends.embedded.allocator import find_allocator, memory_environment

# What chooses the kernels of torch and oneDNN where the processor alone does not.
KERNEL_VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
CAPABILITY = "import torch; print(torch.backends.cpu.get_cpu_capability())"


def machine(packages: Sequence[str]) -> str:
    """Return one line: cores, processor, Python, the packages' versions, and which kernels torch takes."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    versions = ", ".join(f"{name} {_version(name)}" for name in packages)
    where = f"{len(os.sched_getaffinity(0))} cores of {model}, Python {platform.python_version()}"
    return f"{where}, {versions}, {kernels()}"


@cache
def kernels() -> str:
    """Return torch's processor capability, and the variables that lower it or oneDNN's where one is set."""
    # Asked in a process of its own: the harness itself needs no torch.
    capability = subprocess.run([PYTHON, "-c", CAPABILITY], check=True, capture_output=True, text=True).stdout.strip()
    chosen = [f"{name}={os.environ[name]}" for name in KERNEL_VARIABLES if name in os.environ]
    return " ".join([capability, *chosen])


def fair_environment() -> Mapping[str, str]:
    """Return the variables that every system is started with, so that none has a better allocator than another.

    Wherever a server waits with a spinning thread, it takes the core of the one that works.
    """
    return {**memory_environment(), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def allocator() -> str:
    """Return the name of the allocator in that environment."""
    return find_allocator() or "glibc"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
