"""Reads the manifest of the model store."""

import re
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from service.config.environment import read_file
from service.domain.archive import Archive, Catalog, StoreError
from service.domain.names import name_fault
from service.persistence.archives.trust import Trust

MANIFEST = "manifest.json"
MOST_BYTES = 64 * 1024 * 1024
DEFAULT_VARIANT = "fp32"
NAMES = ("model", "version", "release", "variant")


class _Manifest(BaseModel):
    schema_version: int = Field(ge=1, le=1)
    archives: list[Archive]


def read_catalog(store: Path, trust: Trust) -> Catalog:
    """Return the archives in the manifest of `store`; none while there was no manifest yet.

    Raises:
        StoreError: the manifest is not readable, not to be trusted, or not of the agreed form.
    """
    path = store / MANIFEST
    try:
        written = read_file(path, MOST_BYTES)
    except FileNotFoundError:
        trust.check_absence(store)
        return Catalog(())
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    trust.check(store, written)
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


def _release_order(release: str) -> tuple[tuple[int, ...], str]:
    """Return a key that orders releases by their numbers, so that 1.10 comes after 1.9."""
    return tuple(int(number) for number in re.findall(r"\d+", release)), release
