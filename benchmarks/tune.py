"""Finds the best settings for the archives of a model store on this machine: `make tune`.

One setting is swept at a time, from the best of the sweeps before: workers x threads, then the form of the graph, then
the batch limit. At the end the best runs against the defaults in interleaved repeats. It is kept only if it is ahead of
them by more than the repeats differ.
"""

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.load.closed_loop import closed_loop
from benchmarks.systems.gateway import gateway
from benchmarks.workloads.own import own_workload
from benchmarks.workloads.workload import Workload
from handlers.graph_forms import FORMS
from service.config.settings import Settings

WORKERS = "TORCHGATE_WORKERS_PER_VERSION"
OPENMP, THREADS = "OMP_NUM_THREADS", "TORCHGATE_THREADS_PER_WORKER"  # the latter is for embedded workers
FORM, LIMIT = "TORCHGATE_GRAPH_FORM", "TORCHGATE_MAX_BATCH_SIZE"
MOST_WORKERS: int = Settings.model_fields["max_workers_per_version"].default
LIMITS = (8, 16, 32, 64, 128)
NUM_FINAL_REPEATS = 3
TUNED_FILE = "tuned.env"

Setting = Mapping[str, str]


def run_tune(store: Path, backend: str, clients: int, seconds: float) -> None:
    """Sweep, print a table, and leave the best setting in the store as tuned.env, which `make serve` reads."""
    workload = own_workload(store)
    tuner = Tuner(workload, backend or os.environ.get("TORCHGATE_BACKEND", "grpc"), clients, seconds)
    cores = len(os.sched_getaffinity(0))
    best: dict[str, str] = {}
    for sweep in (shapes(cores, tuner.backend), forms(workload), [{LIMIT: str(limit)} for limit in LIMITS]):
        best = tuner.best_of(best, sweep)
    print(f"the best against the defaults, {NUM_FINAL_REPEATS} interleaved repeats")
    pairs = [(tuner.measure({}), tuner.measure(best)) for _ in range(NUM_FINAL_REPEATS)] if best else []
    gained = gain(pairs)
    path = store / TUNED_FILE
    if gained is None:
        path.unlink(missing_ok=True)
        print("nothing is ahead of the defaults by more than the repeats differ; no file is written")
        return
    note = f"+{gained:.0%} requests/s over the defaults at {clients} clients, {cores} cores, backend {tuner.backend}"
    path.write_text(settings_file(best, f"{workload.model} {workload.version}: {note}"))
    print(f"{note}\n{path}:\n{path.read_text()}")


@dataclass(frozen=True)
class Tuner:
    """Measures settings, each under a server of its own."""

    workload: Workload
    backend: str
    clients: int
    seconds: float

    def measure(self, setting: Setting) -> float:
        """Return requests/s; 0 for what does not start."""
        name = ", ".join(f"{key.removeprefix('TORCHGATE_').lower()}={value}" for key, value in setting.items())
        try:
            with gateway(self.backend, options=setting)(self.workload) as running:
                closed_loop(running.endpoint, self.clients, self.seconds / 2)
                outcome = closed_loop(running.endpoint, self.clients, self.seconds)
        except RuntimeError as error:
            print(f"  {name}: does not start: {str(error).splitlines()[0]}", flush=True)
            return 0.0
        speed, p99 = outcome["throughput"], outcome["p99_ms"]
        print(f"  {name or 'the defaults'}: {speed:.0f}/s, p99 {p99:.1f} ms", flush=True)
        return float(speed)

    def best_of(self, base: Setting, sweep: Sequence[Setting]) -> dict[str, str]:
        """Return base with the best of the sweep's settings."""
        measured = [(self.measure({**base, **each}), {**base, **each}) for each in sweep]
        return max(measured, key=lambda pair: pair[0])[1] if measured else dict(base)


def shapes(cores: int, backend: str) -> list[Setting]:
    """Return workers x threads: every way to give each core one thread, and one worker more than that.

    Shapes of more workers than a version may have are left out.
    """
    pairs = [(workers, cores // workers) for workers in range(1, cores + 1) if cores % workers == 0]
    return [
        {WORKERS: str(workers), (THREADS if backend == "workers" else OPENMP): str(threads)}
        for workers, threads in [*pairs, (cores + 1, 1)]
        if workers <= MOST_WORKERS
    ]


def forms(workload: Workload) -> list[Setting]:
    """Return the forms of the graph, if the archive's handler can be told to take one."""
    with zipfile.ZipFile(workload.archive) as archive:
        sources = [archive.read(name) for name in archive.namelist() if name.endswith(".py")]
    return [{FORM: form} for form in FORMS] if any(FORM.encode() in source for source in sources) else []


def gain(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return by what share the second of each pair is ahead, None unless its least repeat beats the first's largest."""
    if not pairs or min(after for _, after in pairs) <= max(before for before, _ in pairs):
        return None
    return median(after for _, after in pairs) / median(before for before, _ in pairs) - 1


def settings_file(setting: Setting, note: str) -> str:
    """Return the settings as lines NAME=value, the form that `docker run --env-file` reads, too."""
    when = datetime.now(UTC).isoformat(timespec="minutes")
    lines = [f"{name}={value}" for name, value in sorted(setting.items())]
    return "\n".join([f"# Written by `make tune`, {when}", f"# {note}", *lines]) + "\n"
