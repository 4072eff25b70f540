"""Reads the model store: its manifest, and the archives whose sha256 the manifest names."""

import hashlib
import hmac
import json
import re
import zipfile
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from service.domain.archive import Archive, Catalog, StoreError
from service.domain.backend import Target
from service.domain.contract import Contract, ContractInvalid, parse_contract

MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
CONTRACT = "contract.json"
DEFAULT_VARIANT = "fp32"
# A contract is text of a few hundred kilobytes at most; an archive that claims more is not ours.
MAX_CONTRACT_BYTES = 16 * 1024 * 1024


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


def open_archive(store: Path, archive: Archive) -> Contract:
    """Check the sha256 of `archive` and return its contract. Blocks on disk.

    Raises:
        StoreError: the file is missing, is not the one in the manifest, or carries no valid contract.
    """
    path = store / archive.file
    try:
        contract = _read_contract(path, archive.sha256)
    except KeyError as error:
        raise StoreError(f"{path}: it has no {CONTRACT}") from error
    except (StoreError, ContractInvalid) as error:
        raise StoreError(f"{path}: {error}") from error
    # zipfile, its decompressors and json raise many kinds of errors on a malformed archive.
    except Exception as error:
        raise StoreError(f"{path}: {CONTRACT}: {type(error).__name__}: {error}") from error
    if Target(contract.model, contract.version) != archive.target:
        raise StoreError(
            f"{path}: it holds {contract.model} {contract.version}, the manifest says {archive.model} {archive.version}"
        )
    return contract


def _read_contract(path: Path, sha256: str) -> Contract:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            raise StoreError(f"its sha256 is {found}, the manifest says {sha256}")
        with zipfile.ZipFile(file) as archived:
            if archived.getinfo(CONTRACT).file_size > MAX_CONTRACT_BYTES:
                raise StoreError(f"{CONTRACT} is larger than {MAX_CONTRACT_BYTES} bytes")
            return parse_contract(json.loads(archived.read(CONTRACT)))
