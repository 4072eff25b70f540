"""Reads the manifest of the model store."""

import hashlib
import hmac
import re
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from service.domain.archive import Archive, Catalog, StoreError
from service.domain.names import name_fault

MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
DEFAULT_VARIANT = "fp32"
NAMES = ("model", "version", "release", "variant")


class _Manifest(BaseModel):
    schema_version: int = Field(ge=1, le=1)
    archives: list[Archive]


def read_catalog(store: Path, key_file: Path | None = None) -> Catalog:
    """Return the archives in the manifest of `store`; none while there is no manifest.

    With a `key_file`, the manifest must be signed with what it holds: HMAC-SHA256 (RFC 2104) in hexadecimal beside it.

    Raises:
        StoreError: the manifest is not readable, not signed, or not of the agreed form.
    """
    path = store / MANIFEST
    try:
        written = path.read_bytes()
    except FileNotFoundError:
        return Catalog(())
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if key_file is not None:
        _require_signature(store, written, key_file)
    try:
        manifest = _Manifest.model_validate_json(written)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(str(step) for step in fault["loc"])
        raise StoreError(f"{path}: {place}{': ' if place else ''}{fault['msg']}") from error
    for index, archive in enumerate(manifest.archives):
        for field in NAMES:
            if wrong := name_fault(getattr(archive, field)):
                raise StoreError(f"{path}: archives.{index}.{field}: {wrong}")
    ordered = sorted(manifest.archives, key=lambda archive: (archive.variant != DEFAULT_VARIANT, archive.variant))
    ordered.sort(key=lambda archive: _release_order(archive.release), reverse=True)
    return Catalog(tuple(sorted(ordered, key=lambda archive: archive.model)))


def _require_signature(store: Path, written: bytes, key_file: Path) -> None:
    try:
        key = key_file.read_bytes().strip()
        found = (store / SIGNATURE).read_text().strip()
    except (OSError, ValueError) as error:
        raise StoreError(f"{store / SIGNATURE}: {getattr(error, 'strerror', error)}") from error
    if not hmac.compare_digest(hmac.new(key, written, hashlib.sha256).hexdigest().encode(), found.encode()):
        raise StoreError(f"{store / SIGNATURE} is not the signature of {MANIFEST} by {key_file}")


def _release_order(release: str) -> tuple[tuple[int, ...], str]:
    """Return a key that orders releases by their numbers, so that 1.10 comes after 1.9."""
    return tuple(int(number) for number in re.findall(r"\d+", release)), release
