"""Builds each workload once: the archive in a store of its own and unpacked, the bodies, what must be answered."""

import os
import shutil
import subprocess
import sys
import zipfile

from benchmarks.environment.folders import ROOT, WORK
from benchmarks.load.endpoint import FRESH_HEADERS
from benchmarks.peers.variables import EXPECTED
from benchmarks.workloads.images import as_json, write_jpegs, write_photos, write_plain_digits
from benchmarks.workloads.trained import SEEDS, SMALL, trained, trained_big
from benchmarks.workloads.workload import Name, Unavailable, Workload, manifest, write_store


def prepare(name: Name, *, quick: bool) -> Workload:
    """Return a workload, built if it is not there.

    Raises Unavailable if the training pipeline makes no such variant.
    """
    source = trained_big() if name == "big" else trained(SEEDS[0], quick=quick)
    variant = "int8-static" if name == "small-int8" else "fp32"
    found = [entry for entry in manifest(source) if entry["variant"] == variant]
    if not found:
        raise Unavailable(f"training makes no variant {variant}")
    entry = found[-1]
    folder = WORK / "workloads" / (f"{name}-quick" if quick and name != "big" else name)
    suffix = "jpg" if name in ("big", "small-jpeg") else "png"
    headers = FRESH_HEADERS if name == "small-jpeg" else {}
    workload = Workload(name, folder, folder / "store", entry["model"], entry["version"], suffix, headers)
    if not (folder / EXPECTED).exists():
        shutil.rmtree(folder, ignore_errors=True)
        write_store(workload.store, [(source / entry["file"], entry)])
        with zipfile.ZipFile(source / entry["file"]) as archive:
            archive.extractall(folder)
        _write_bodies(workload)
        command = [sys.executable, "-m", "benchmarks.peers.raw_passes", "answers", str(folder)]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return workload


def _write_bodies(workload: Workload) -> None:
    folder = workload.folder / "bodies"
    folder.mkdir(parents=True)
    if workload.name == "big":
        write_photos(folder)
    elif workload.suffix == "jpg":
        write_jpegs(folder)
    else:
        write_plain_digits(folder, SMALL)
    for path in workload.bodies():
        path.with_suffix(".json").write_text(as_json(path.read_bytes()))
