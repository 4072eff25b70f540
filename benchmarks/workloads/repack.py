"""The same graph under another handler, and the same archive with another checkout's handler files."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.environment.folders import PEERS, PYTHON
from benchmarks.workloads.workload import Workload, manifest, write_store

HANDLER = "image_classifier.py"


def repack(workload: Workload, store: Path, handler: Path, extra: Sequence[Path]) -> Path:
    """Return the store, filled with the workload's graph under a handler by torch-model-archiver if it is empty."""
    if manifest(store):
        return store
    entry = manifest(workload.store)[0]
    contract = workload.folder / "contract.json"
    with tempfile.TemporaryDirectory() as temporary:
        command = [PYTHON, "-m", "model_archiver.model_packaging", "--model-name", workload.model]
        command += ["--version", workload.version, "--serialized-file", workload.folder / "model.pt"]
        command += ["--handler", handler, "--extra-files", ",".join(map(str, [contract, *extra]))]
        subprocess.run(
            [str(part) for part in [*command, "--export-path", temporary]],
            check=True,
            capture_output=True,
            cwd=temporary,
            env={**os.environ, "TMPDIR": temporary},
        )
        write_store(store, [(Path(temporary) / f"{workload.model}.mar", entry)])
    return store


def batching_store(workload: Workload) -> Path:
    """Return the store for TorchServe's own batching."""
    return repack(workload, workload.folder / "store-batching", PEERS / "torchserve_batching.py", [])


def store_with_handlers(workload: Workload, tree: Path, store: Path) -> Path:
    """Return the store with the workload's archive, in which every handler file is the checkout's own."""
    others = [path for path in sorted((tree / "handlers").glob("*.py")) if path.name != HANDLER]
    return repack(workload, store, tree / "handlers" / HANDLER, others)
