"""What a run's figures depend on besides its config: the code, the machine, the packages."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

PACKAGE = Path(__file__).resolve().parent.parent
GIT_TIMEOUT_SECONDS = 20


@dataclass(frozen=True)
class Code:
    """The commit that the code was checked out at; dirty if a file differs from it, new files included."""

    commit: str
    dirty: bool


@dataclass(frozen=True)
class Environment:
    """Versions, processor and threads; the packages are those of the whole environment."""

    python: str
    system: str
    cpu: str
    num_cpus: int
    num_threads: int
    torch: str
    accelerators: list[str]
    packages: dict[str, str]


def find_code(package: Path = PACKAGE) -> Code | None:
    """Return the state of the git checkout that the package is part of; None where it is installed, or git is not."""
    commit = _git(package, "rev-parse", "HEAD")
    # An installed package may lie inside another project's checkout, which says nothing of it.
    if commit is None or _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return Code(commit.strip(), dirty=_git(package, "status", "--porcelain") != "")


def find_environment() -> Environment:
    """Return what this process runs on."""
    accelerators = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    packages = {each.name: each.version for each in metadata.distributions()}
    return Environment(
        python=platform.python_version(),
        system=platform.platform(),
        cpu=_cpu_name(),
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        num_threads=torch.get_num_threads(),
        torch=torch.__version__,
        accelerators=accelerators,
        packages=dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _git(folder: Path, *args: str) -> str | None:
    command = ["git", "-C", str(folder), *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
