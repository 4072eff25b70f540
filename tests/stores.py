"""Model stores for tests of the gateway: archives with a contract and nothing else, and their manifest."""

import base64
import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.domain.backend import Target, VerifiedArchive

CLASSES = ["zero", "one", "two", "three"]


def make_contract(model: str, release: str, variant: str) -> dict[str, Any]:
    """Return a contract whose self-check the fake backend passes."""
    version = release if variant == "fp32" else f"{release}-{variant}"
    return {
        "schema_version": 1,
        "model": model,
        "release": release,
        "variant": variant,
        "version": version,
        "precision": variant,
        "classes": CLASSES,
        "weights_sha256": "0" * 64,
        "evaluation": {"accuracy": 0.99},
        "reference": {
            "split": "validation",
            "class_prior": [0.25] * 4,
            "confidence_histogram": {"edges": [0.0, 0.5, 0.9, 1.0], "counts": [0, 20, 380]},
        },
        "self_check": {
            "tolerance": 1e-4,
            "cases": [
                {"image_b64": base64.b64encode(b"class:1").decode(), "probabilities": [0.0, 1.0, 0.0, 0.0]},
            ],
        },
    }


def make_store(
    folder: Path, versions: Sequence[tuple[str, str, str]], *, without: str | None = None
) -> dict[Target, dict[str, Any]]:
    """Fill `folder` with an archive for each (model, release, variant); return their contracts, `without` a field."""
    folder.mkdir(parents=True, exist_ok=True)
    contracts: dict[Target, dict[str, Any]] = {}
    archives = []
    for model, release, variant in versions:
        contract = make_contract(model, release, variant)
        contract.pop(without or "", None)
        version = contract["version"]
        path = folder / f"{model}-{version}.mar"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("contract.json", json.dumps(contract))
        contracts[Target(model, version)] = contract
        archives.append(archive_entry(path, model, release, variant))
    write_manifest(folder, archives)
    return contracts


def archive_entry(path: Path, model: str, release: str, variant: str) -> dict[str, Any]:
    """Return what the manifest says of an archive."""
    return {
        "file": path.name,
        "model": model,
        "version": release if variant == "fp32" else f"{release}-{variant}",
        "release": release,
        "variant": variant,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "size_bytes": path.stat().st_size,
        "created": "2026-01-01T00:00:00Z",
    }


def write_manifest(folder: Path, archives: Sequence[dict[str, Any]]) -> None:
    (folder / "manifest.json").write_text(json.dumps({"schema_version": 1, "archives": archives}))


def as_verified(path: Path) -> VerifiedArchive:
    """Return an archive as a backend gets it."""
    return VerifiedArchive(io.BytesIO(path.read_bytes()), path.name, lambda: None)


def replace_archive(store: Path, target: Target, content: bytes) -> None:
    """Write other bytes in place of an archive; the manifest says that they are the right ones."""
    path = store / f"{target.model}-{target.version}.mar"
    path.write_bytes(content)
    manifest = json.loads((store / "manifest.json").read_text())
    for entry in manifest["archives"]:
        if entry["file"] == path.name:
            entry["sha256"] = hashlib.sha256(content).hexdigest()
    (store / "manifest.json").write_text(json.dumps(manifest))
