"""The models and images that are served, built once into the work folder: stores, unpacked archives, request bodies."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps

from benchmarks.places import HANDLERS, PEERS, PYTHON, ROOT, SAMPLES, WORK
from benchmarks.raw import EXPECTED

Name = Literal["small", "small-int8", "big"]
SMALL, BIG = (32, 32), (224, 224)
SMALL_MODEL, BIG_MODEL = "digits", "photos"
SEEDS = (0, 1, 2)
NUM_BIG_BODIES, NUM_PHOTOS_PER_CLASS = 4, 4
BIG_CLASSES = ("beach", "field", "forest", "meadow", "mountain", "river", "sea", "street")


@dataclass(frozen=True)
class Workload:
    """One model version with what is sent to it."""

    name: str
    folder: Path  # the archive, unpacked, and what the harness adds
    store: Path  # a model store with this version and nothing else
    model: str
    version: str
    suffix: str

    @property
    def archive(self) -> Path:
        """The archive in the store."""
        return self.store / f"{self.model}-{self.version}.mar"

    @property
    def content_type(self) -> str:
        """Of the bodies."""
        return "image/png" if self.suffix == "png" else "image/jpeg"

    def bodies(self, kind: str = "raw") -> list[Path]:
        """Return the files to send: images as they are, or JSON with the image as base64."""
        suffix = self.suffix if kind == "raw" else "json"
        return sorted((self.folder / "bodies").glob(f"*.{suffix}"))

    def contract(self) -> dict[str, Any]:
        """Return the contract."""
        document: dict[str, Any] = json.loads((self.folder / "contract.json").read_text())
        return document


class Unavailable(Exception):
    """Something that a line needs is not there, with the reason."""


def train(store: Path, arguments: Sequence[str], log: Path) -> None:
    """Run the project's training pipeline into a store of its own."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [PYTHON, "-m", "training", "pipeline", *arguments]
    command += ["--model-store", str(store), "--runs", str(WORK / "training-runs")]
    with log.open("wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"training failed: {log.read_text(errors='replace')[-1000:]}")


def manifest(store: Path) -> list[dict[str, Any]]:
    """Return the store's entries."""
    path = store / "manifest.json"
    if not path.exists():
        return []
    entries: list[dict[str, Any]] = json.loads(path.read_text())["archives"]
    return entries


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
            _photo(number, (64, 64)).save(_made(photos / name) / f"{number:03d}.jpg")
        arguments = ["--preset", "images", "--name", BIG_MODEL, "--data", str(photos), "--epochs", "1"]
        train(store, arguments, WORK / "logs" / "training-big.log")
    return store


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
    suffix = "jpg" if name == "big" else "png"
    workload = Workload(name, folder, folder / "store", entry["model"], entry["version"], suffix)
    if not (folder / EXPECTED).exists():
        shutil.rmtree(folder, ignore_errors=True)
        write_store(workload.store, [(source / entry["file"], entry)])
        with zipfile.ZipFile(source / entry["file"]) as archive:
            archive.extractall(folder)
        _write_bodies(workload)
        command = [sys.executable, "-m", "benchmarks.raw", "answers", str(folder)]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return workload


def write_store(store: Path, archives: Sequence[tuple[Path, dict[str, Any]]]) -> None:
    """Make a model store that holds these archives under their entries of the manifest."""
    _made(store)
    entries = []
    for archive, entry in archives:
        shutil.copy(archive, store / entry["file"])
        entries.append({**entry, "sha256": hashlib.sha256(archive.read_bytes()).hexdigest()})
    (store / "manifest.json").write_text(json.dumps({"schema_version": 1, "archives": entries}))


def repack(workload: Workload, handler: Path, extra: Sequence[Path]) -> Path:
    """Return a store with the workload's graph under another handler, packed by torch-model-archiver."""
    store = workload.folder / f"store-{handler.stem}"
    if manifest(store):
        return store
    entry = manifest(workload.store)[0]
    with tempfile.TemporaryDirectory() as temporary:
        command = [PYTHON, "-m", "model_archiver.model_packaging", "--model-name", workload.model]
        command += ["--version", workload.version, "--serialized-file", workload.folder / "model.pt"]
        command += ["--handler", handler, "--extra-files", ",".join(map(str, extra)), "--export-path", temporary]
        subprocess.run(
            [str(part) for part in command],
            check=True,
            capture_output=True,
            cwd=temporary,
            env={**os.environ, "TMPDIR": temporary},
        )
        write_store(store, [(Path(temporary) / f"{workload.model}.mar", entry)])
    return store


def batching_store(workload: Workload) -> Path:
    """Return the store for TorchServe's own batching."""
    return repack(workload, PEERS / "torchserve_batching.py", [workload.folder / "contract.json"])


def poisoned_store(workload: Workload) -> Path:
    """Return the store whose handler raises on a marked item."""
    return repack(workload, PEERS / "poisoned_handler.py", [workload.folder / "contract.json", *HANDLERS])


def _write_bodies(workload: Workload) -> None:
    folder = _made(workload.folder / "bodies")
    if workload.suffix == "png":
        for path in sorted(SAMPLES.glob("digit-*.png")):
            with Image.open(path) as image:
                ImageOps.fit(image.convert("L"), SMALL).save(folder / path.name)
    else:
        for number in range(NUM_BIG_BODIES):
            _photo(1000 + number, BIG).save(folder / f"{number}.jpg", quality=90)
    for path in workload.bodies():
        text = json.dumps({"image": base64.b64encode(path.read_bytes()).decode()})
        path.with_suffix(".json").write_text(text)


def _photo(seed: int, size: tuple[int, int]) -> Image.Image:
    """Return something with a photograph's spectrum: coarse noise, smoothly enlarged, with a little fine noise."""
    source = np.random.default_rng(seed)
    coarse = Image.fromarray(source.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    fine = source.integers(-12, 13, (size[1], size[0], 3))
    return Image.fromarray((np.asarray(coarse).astype(int) + fine).clip(0, 255).astype(np.uint8))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
