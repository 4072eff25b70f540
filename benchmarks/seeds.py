"""What static quantization costs in accuracy: the same training under several seeds, both variants on the same test."""

import json
import math
import os
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.workloads import SEEDS, Unavailable, manifest, trained

# Student's t for 95 % and as many degrees of freedom as there are seeds, less one.
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


def accuracies(store: Path) -> dict[str, float]:
    """Return the accuracy of each variant in a store, in percent, as its contract has it."""
    found = {}
    for entry in manifest(store):
        with zipfile.ZipFile(store / entry["file"]) as archive:
            contract = json.loads(archive.read("contract.json"))
        found[entry["variant"]] = contract["evaluation"]["accuracy"] * 100
    return found


def interval(differences: Sequence[float]) -> dict[str, Any]:
    """Return the mean of the differences with its 95 % confidence interval."""
    centre = mean(differences)
    reach = T_95[len(differences) - 1] * stdev(differences) / math.sqrt(len(differences))
    return {"mean": centre, "low": centre - reach, "high": centre + reach, "differences": list(differences)}


def static_against_fp32() -> dict[str, Any]:
    """Return by how many points int8-static differs from fp32, over the seeds; trains what is not there, side by side.

    What export then measures, it measures while the others train: only accuracies are of use.

    Raises Unavailable if the training pipeline makes no such variant.
    """
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        stores = list(pool.map(partial(trained, quick=False), SEEDS))
    differences = []
    for store in stores:
        found = accuracies(store)
        if "int8-static" not in found:
            raise Unavailable("training makes no variant int8-static")
        differences.append(found["int8-static"] - found["fp32"])
    return interval(differences)
