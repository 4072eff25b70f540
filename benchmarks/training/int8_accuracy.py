"""What int8 costs in accuracy: the same training under several seeds, all variants on the same test images.

`make bench` holds the static variant against fp32 by their contracts; `python -m benchmarks cost int8-accuracy` adds
quantization-aware training, and asks every variant for every test image.
"""

import json
import math
import os
import shutil
import subprocess
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import stats

from benchmarks.environment.folders import PYTHON, ROOT, WORK
from benchmarks.workloads.trained import SEEDS, trained
from benchmarks.workloads.workload import Unavailable, manifest

VARIANTS: tuple[Literal["fp32", "int8-static", "int8-qat"], ...] = ("fp32", "int8-static", "int8-qat")
PAIRS = (("int8-qat", "int8-static"), ("int8-qat", "fp32"), ("int8-static", "fp32"))
BOTH_SIDES_95 = 0.975  # the quantile at which an interval of 95 % ends

Right = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Difference:
    """One variant against another, in points of accuracy, with two 95 % intervals.

    The first is Student's over the seeds. The second is for the test images, of all seeds together: those that one
    variant alone gets right are counted, and so it has a width even where all seeds agree.
    """

    variant: str
    against: str
    over_seeds: dict[str, Any]
    images_low: float
    images_high: float
    num_gained: int
    num_lost: int


def measure_quantized() -> None:
    """Train what is not there; print and keep the table.

    Raises Unavailable if the runs of the seeds are not there any more.
    """
    right = [answers(seed) for seed in SEEDS]
    text = markdown(SEEDS, right, [difference(right, *pair) for pair in PAIRS])
    path = WORK / "quantized" / "quantized.md"
    path.write_text(text + "\n")
    print(f"{text}\ntable: {path}")


def answers(seed: int) -> dict[str, Right]:
    """Return which test images each variant gets right, bool [N], after quantization-aware training of that seed."""
    # Torch is not needed to print the command line's help.
    from training.artifacts import Run  # noqa: PLC0415
    from training.data.dataset import load_split  # noqa: PLC0415
    from training.evaluation.evaluate import predict  # noqa: PLC0415
    from training.int8.quantize import load_variant  # noqa: PLC0415

    folder = WORK / "quantized" / f"seed-{seed}"
    run = Run(folder)
    if not run.qat.weights_card.exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(run_of(trained(seed, quick=False)), folder)
        print(f"quantization-aware training, seed {seed}", flush=True)
        command = [str(PYTHON), "-m", "training", "quantize", "--run", str(folder), "--qat"]
        subprocess.run(command, cwd=ROOT, check=True)
    images, labels = load_split(run, "test")
    expected = labels.numpy()
    return {name: predict(load_variant(run, name), images).argmax(axis=1) == expected for name in VARIANTS}


def run_of(store: Path) -> Path:
    """Return the folder of the run that filled a store; raises Unavailable if it is gone."""
    folder = WORK / "training-runs" / str(contracts(store)[0]["training"]["run"])
    if not folder.is_dir():
        raise Unavailable(f"{folder} is gone; remove {store} to have it trained again")
    return folder


def difference(right: Sequence[dict[str, Right]], variant: str, against: str) -> Difference:
    """Return how far one variant is from another over the seeds, whose right answers are bool [N] each."""
    over_seeds = interval([100 * float(each[variant].mean() - each[against].mean()) for each in right])
    new, old = (np.concatenate([each[name] for each in right]) for name in (variant, against))
    gained, lost = int((new & ~old).sum()), int((old & ~new).sum())
    low, high = paired_interval(gained, lost, len(new))
    return Difference(variant, against, over_seeds, 100 * low, 100 * high, gained, lost)


def paired_interval(num_gained: int, num_lost: int, num_images: int) -> tuple[float, float]:
    """Return the 95 % interval of a difference of two shares of the same images.

    Agresti and Min 2005 (Statistics in Medicine 24): Wald's interval after half an image was added to each cell.
    """
    num = num_images + 2
    gained, lost = (num_gained + 0.5) / num, (num_lost + 0.5) / num
    centre = gained - lost
    reach = float(stats.norm.ppf(BOTH_SIDES_95)) * math.sqrt((gained + lost - centre**2) / num)
    return centre - reach, centre + reach


def markdown(seeds: Sequence[int], right: Sequence[dict[str, Right]], found: Sequence[Difference]) -> str:
    """Return accuracies by seed, then the differences."""
    means = [[float(each[name].mean()) for name in VARIANTS] for each in right]
    rows = dict(zip(map(str, seeds), means, strict=True))
    rows["mean"] = [mean(column) for column in zip(*means, strict=True)]
    lines = [f"| seed | {' | '.join(VARIANTS)} |", f"|---|{'---|' * len(VARIANTS)}"]
    lines += [f"| {name} | {' | '.join(f'{100 * value:.2f} %' for value in values)} |" for name, values in rows.items()]
    lines += ["", "| points of accuracy | mean | 95 % over seeds | 95 % over images | gained, lost |"]
    lines.append("|---|---|---|---|---|")
    for each in found:
        seeds_found = "{mean:+.2f} | {low:+.2f} to {high:+.2f}".format(**each.over_seeds)
        images = f"{each.images_low:+.2f} to {each.images_high:+.2f} | {each.num_gained}, {each.num_lost}"
        lines.append(f"| {each.variant} - {each.against} | {seeds_found} | {images} |")
    return "\n".join(lines)


def contracts(store: Path) -> list[dict[str, Any]]:
    """Return the contract of each archive in a store."""
    found = []
    for entry in manifest(store):
        with zipfile.ZipFile(store / entry["file"]) as archive:
            found.append(json.loads(archive.read("contract.json")))
    return found


def interval(differences: Sequence[float]) -> dict[str, Any]:
    """Return the mean of the differences with Student's 95 % confidence interval."""
    centre = mean(differences)
    quantile = float(stats.t.ppf(BOTH_SIDES_95, len(differences) - 1))
    reach = quantile * stdev(differences) / math.sqrt(len(differences))
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
        found = {each["variant"]: each["evaluation"]["accuracy"] * 100 for each in contracts(store)}
        if "int8-static" not in found:
            raise Unavailable("training makes no variant int8-static")
        differences.append(found["int8-static"] - found["fp32"])
    return interval(differences)
