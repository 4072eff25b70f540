"""The model store's list of archives, and which release is free."""

import errno
import fcntl
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from training.archive.signatures import Signer, signature_path
from training.artifacts import Variant, as_json, write_files
from training.errors import ArchiveError, StorageError

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Entry:
    """One archive of the store."""

    file: str
    model: str
    version: str
    release: str
    variant: Variant
    sha256: str
    size_bytes: int
    created: str


def manifest_path(store: Path) -> Path:
    """Return where the list lies."""
    return store / "manifest.json"


@contextmanager
def writing(store: Path) -> Iterator[None]:
    """Write into the store inside; raises ArchiveError, with the next step, if that does not work."""
    try:
        yield
    except (OSError, StorageError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        assert isinstance(cause, OSError)
        step = "make room there" if cause.errno in (errno.ENOSPC, errno.EDQUOT) else "let this user write there"
        told = f"the model store {store} cannot be written: {cause.strerror}"
        raise ArchiveError(f"{told}. It is as it was before: {step}, then run this again") from error


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Hold the store, made if it is missing, against other trainers; the lock dies with its process."""
    with writing(store):
        store.mkdir(parents=True, exist_ok=True)
        lock = (store / ".lock").open("w")
    with lock:
        # Bounded by the other holder's work: it runs the archiver once for each variant, and that has a time limit.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_manifest(store: Path) -> list[Entry]:
    """Return the archives that the store lists; raises ArchiveError for a manifest that is not one."""
    try:
        document = json.loads(manifest_path(store).read_text())
        if document["schema_version"] != SCHEMA_VERSION:
            raise ArchiveError(
                f"{manifest_path(store)} has schema version {document['schema_version']}; "
                f"this trainer writes {SCHEMA_VERSION}"
            )
        return [Entry(**entry) for entry in document["archives"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{manifest_path(store)} is not a manifest: {error!r}") from error


def write_manifest(store: Path, entries: list[Entry], signer: Signer | None = None) -> None:
    """Replace the list and its signature, both or none; without a signer, say so where the store was signed."""
    path = manifest_path(store)
    content = as_json({"schema_version": SCHEMA_VERSION, "archives": [asdict(entry) for entry in entries]})
    files = {path: content}
    if signer is not None:
        files[signature_path(path)] = signer.signature(path, content)
    write_files(files)
    if signer is None and signature_path(path).exists():
        print(f"{path} is not signed anew: run `python -m training sign` where the key is")


def taken_releases(store: Path, model: str) -> set[str]:
    """Return the releases of the model in the store, by its list and by its files: a crash may have kept them apart."""
    pattern = re.compile(rf"{re.escape(model)}-(\d+(?:\.\d+)+)(?:-[a-z][a-z0-9-]*)?\.mar")
    by_name = (pattern.fullmatch(path.name) for path in store.glob("*.mar"))
    listed = {entry.release for entry in read_manifest(store) if entry.model == model}
    return {match.group(1) for match in by_name if match} | listed


def next_release(taken: set[str]) -> str:
    """Return 1.0 for a new model, else the highest release with its minor number raised: 1.0, 1.1, 1.2."""
    if not taken:
        return "1.0"
    major, minor, *_ = max(tuple(int(number) for number in release.split(".")) for release in taken)
    return f"{major}.{minor + 1}"
