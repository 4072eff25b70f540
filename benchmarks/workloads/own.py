"""The newest archive of a user's own model store as a workload."""

import base64
import json
import zipfile
from pathlib import Path

from benchmarks.environment.folders import WORK
from benchmarks.peers.variables import EXPECTED
from benchmarks.workloads.workload import Workload, manifest, write_store


def own_workload(store: Path) -> Workload:
    """Return the newest fp32 version of the store's own model, with its self-check's images as requests.

    Raises SystemExit, saying why, for a store without archives.
    """
    entries = [entry for entry in manifest(store) if entry["variant"] == "fp32"]
    if not entries:
        raise SystemExit(f"{store} holds no fp32 archive: `make train-and-archive` makes one")
    entry = entries[-1]
    folder = WORK / "tune" / f"{entry['model']}-{entry['version']}"
    bodies = folder / "bodies"
    bodies.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(store / entry["file"]) as archive:
        (folder / "contract.json").write_bytes(archive.read("contract.json"))
    # A store of its own: the gateway would load all that the user's has, several times for each sweep.
    write_store(folder / "store", [(store / entry["file"], entry)])
    workload = Workload("tune", folder, folder / "store", entry["model"], entry["version"], "png")
    expected = {}
    contract = workload.contract()
    for number, case in enumerate(contract["self_check"]["cases"]):
        (bodies / f"{number}.png").write_bytes(base64.b64decode(case["image_b64"]))
        best = max(range(len(case["probabilities"])), key=lambda index: case["probabilities"][index])
        expected[str(number)] = contract["classes"][best]
    (folder / EXPECTED).write_text(json.dumps(expected))
    return workload
