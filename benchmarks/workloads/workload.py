"""One model version with what is sent to it, and the model store around its archive."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Name = Literal["small", "small-jpeg", "small-int8", "big"]


@dataclass(frozen=True)
class Workload:
    """One model version with what is sent to it."""

    name: str
    folder: Path  # the archive, unpacked, and what the harness adds
    store: Path  # a model store with this version and nothing else
    model: str
    version: str
    suffix: str
    headers: Mapping[str, str] = field(default_factory=dict)  # of every request

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
    """Something that a row needs is not there, with the reason."""


def manifest(store: Path) -> list[dict[str, Any]]:
    """Return the store's entries."""
    path = store / "manifest.json"
    if not path.exists():
        return []
    entries: list[dict[str, Any]] = json.loads(path.read_text())["archives"]
    return entries


def write_store(store: Path, archives: Sequence[tuple[Path, dict[str, Any]]]) -> None:
    """Make a model store that holds these archives under their entries of the manifest."""
    store.mkdir(parents=True, exist_ok=True)
    entries = []
    for archive, entry in archives:
        shutil.copy(archive, store / entry["file"])
        entries.append({**entry, "sha256": hashlib.sha256(archive.read_bytes()).hexdigest()})
    (store / "manifest.json").write_text(json.dumps({"schema_version": 1, "archives": entries}))
