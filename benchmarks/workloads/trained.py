"""The models, trained by the project's own pipeline into stores of the work folder."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.environment.folders import PYTHON, ROOT, WORK
from benchmarks.workloads.images import photo
from benchmarks.workloads.workload import manifest

SMALL = (32, 32)
SMALL_MODEL, BIG_MODEL = "digits", "photos"
SEEDS = (0, 1, 2)
BIG_CLASSES = ("beach", "field", "forest", "meadow", "mountain", "river", "sea", "street")
NUM_PHOTOS_PER_CLASS = 4


def train(store: Path, arguments: Sequence[str], log: Path) -> None:
    """Run the project's training pipeline into a store of its own."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [PYTHON, "-m", "training", "pipeline", *arguments]
    command += ["--model-store", str(store), "--runs", str(WORK / "training-runs")]
    with log.open("wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"training failed: {log.read_text(errors='replace')[-1000:]}")


def trained(seed: int, *, quick: bool) -> Path:
    """Return the store with the small model of this seed; trained if it is not there."""
    store = WORK / ("store-quick" if quick else f"store-seed-{seed}")
    if not manifest(store):
        print(f"training the small model, seed {seed}", flush=True)
        height, width = map(str, SMALL)
        arguments = ["--preset", "digits", "--name", SMALL_MODEL, "--height", height, "--width", width]
        arguments += ["--seed", str(seed), *(["--epochs", "1"] if quick else [])]
        train(store, arguments, WORK / "logs" / f"training-{store.name}.log")
    return store


def trained_big() -> Path:
    """Return the store with the big model. One epoch on noise: what it answers does not matter, only its work."""
    store = WORK / "store-big"
    if not manifest(store):
        print("training the big model", flush=True)
        photos = WORK / "photos"
        for number, name in enumerate(BIG_CLASSES * NUM_PHOTOS_PER_CLASS):
            (photos / name).mkdir(parents=True, exist_ok=True)
            photo(number, (64, 64)).save(photos / name / f"{number:03d}.jpg")
        arguments = ["--preset", "images", "--name", BIG_MODEL, "--data", str(photos), "--epochs", "1"]
        train(store, arguments, WORK / "logs" / "training-big.log")
    return store
