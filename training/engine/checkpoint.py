"""What an interrupted training goes on from: files, whole or not there, and the state of the random generators."""

import io
import pickle
import random
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.artifacts import write_bytes
from training.errors import RunError

NAME = re.compile(r"step-(\d{8})\.pt")


# What reading a file raises whose bytes are not those that were written, depending on where they lie.
DAMAGED = (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, pickle.UnpicklingError)


class Checkpoints:
    """The checkpoints in a folder, by the number of optimizer steps that were taken."""

    def __init__(self, folder: Path, num_kept: int) -> None:
        self.folder = folder
        self.num_kept = num_kept

    def paths(self) -> list[Path]:
        """Return the files, the oldest first."""
        return sorted(path for path in self.folder.glob("*.pt") if NAME.fullmatch(path.name))

    def save(self, num_steps: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint of tensors and plain values, then remove those that are too many."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        path = self.folder / f"step-{num_steps:08d}.pt"
        write_bytes(path, buffer.getvalue())
        for old in self.paths()[: -self.num_kept]:
            old.unlink()
        return path

    def load_newest(self) -> dict[str, Any] | None:
        """Return the newest checkpoint, None if there is none; raises RunError if it is no whole one."""
        paths = self.paths()
        if not paths:
            return None
        try:
            return _load(paths[-1])
        except DAMAGED as error:
            raise RunError(f"{paths[-1]} is no checkpoint; remove it, and the one before is gone on with") from error

    def clear(self) -> None:
        """Remove them all: a training that starts anew is not gone on with from an older one's place."""
        for path in self.paths():
            path.unlink()


def _load(path: Path) -> dict[str, Any]:
    # Torch itself does not look at the checksums, by which a damaged weight would be known.
    with zipfile.ZipFile(path) as file:
        damaged = file.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(damaged)
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, so that a run depends on nothing that was drawn before it."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Return the state of all random generators of this process: Python's, NumPy's, torch's on CPU and GPUs."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Set what `random_state` returned; the states of GPUs that are not there are left out."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    for index, each in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(each, index)
