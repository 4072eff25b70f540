"""What an interrupted training goes on from: written whole or not at all, and only the newest few."""

import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

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
