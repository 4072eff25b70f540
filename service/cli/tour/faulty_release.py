"""A release with a fault that its self-check cannot see: put into the model store, and removed from it."""

import fcntl
import hashlib
import json
import os
import shutil
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.cli.gateway import CallFailed

# The lowest release of all: no gateway takes it for the newest, and the next release's number does not depend on it.
RELEASE, VERSION = "0.0", "0.0-tour"
CONTRACT, ARCHIVE_MANIFEST = "contract.json", "MAR-INF/MANIFEST.json"
LOCK_SECONDS = 60.0
PAUSE_SECONDS = 0.1


class FaultyRelease:
    """A copy of one archive of `store` whose classes have moved on by one, so that every answer is wrong."""

    def __init__(self, store: Path, model: str) -> None:
        self.file = f"{model}-{VERSION}.mar"
        self._store = store
        self._model = model

    def original(self, version: str, sha256: str) -> dict[str, Any]:
        """Return the manifest's entry of the served version; raises CallFailed if the store is another one's."""
        if (self._store / "manifest.json.sig").exists():
            raise CallFailed(
                f"the model store {self._store} is signed, and the tour cannot sign its archive. Run the tour on a "
                "gateway whose store is not signed"
            )
        for entry in self._manifest()["archives"]:
            if (entry["model"], entry["version"], entry["sha256"]) == (self._model, version, sha256):
                return dict(entry)
        raise CallFailed(
            f"the model store {self._store} does not hold the archive that the gateway serves as {self._model} "
            f"{version}. Name the gateway's own store with --model-store"
        )

    def is_there(self) -> bool:
        """Return whether the store holds anything of it."""
        return self._is_listed() or (self._store / self.file).exists()

    def put(self, original: dict[str, Any]) -> None:
        """Write the archive and list it."""
        source, path = self._store / original["file"], self._store / self.file
        with self._changing() as document:
            with zipfile.ZipFile(source) as good, zipfile.ZipFile(path, "x") as faulty:
                for member in good.infolist():
                    faulty.writestr(member, _spoilt(member.filename, good.read(member)))
            shutil.copymode(source, path)
            content = path.read_bytes()
            own = {"file": self.file, "version": VERSION, "release": RELEASE, "size_bytes": len(content)}
            document["archives"].append({**original, **own, "sha256": hashlib.sha256(content).hexdigest()})

    def remove(self) -> None:
        """Delete the archive and its line in the manifest, whatever of the two is there."""
        if self._is_listed():
            with self._changing() as document:
                document["archives"] = [entry for entry in document["archives"] if entry["file"] != self.file]
        try:
            (self._store / self.file).unlink(missing_ok=True)
        except OSError as error:
            raise CallFailed(f"{self._store / self.file} cannot be removed: {error.strerror}") from error

    def _is_listed(self) -> bool:
        return any(entry["file"] == self.file for entry in self._manifest()["archives"])

    def _manifest(self) -> dict[str, Any]:
        path = self._store / "manifest.json"
        try:
            document: dict[str, Any] = json.loads(path.read_bytes())
        except OSError as error:
            raise CallFailed(
                f"{path} cannot be read: {error.strerror}. Name the gateway's own store with --model-store"
            ) from error
        except ValueError as error:
            raise CallFailed(f"{path} is not a manifest: {error}") from error
        return document

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """Give the manifest, and write it back with what was changed; trainers wait meanwhile."""
        path, new = self._store / "manifest.json", self._store / f".manifest-{os.getpid()}"
        try:
            with (self._store / ".lock").open("w") as lock:
                _acquire(lock.fileno())
                document = self._manifest()
                yield document
                new.write_text(json.dumps(document, indent=2) + "\n")
                shutil.copymode(path, new)
                new.replace(path)
        except OSError as error:
            raise CallFailed(
                f"the model store {self._store} cannot be written: {error.strerror or error}. Run the tour as a user "
                "who may write there, while no training archives its models"
            ) from error
        finally:
            new.unlink(missing_ok=True)


def _acquire(lock: int) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_SECONDS)


def _spoilt(name: str, content: bytes) -> bytes:
    """Return a file of the archive for the faulty one."""
    if name == ARCHIVE_MANIFEST:
        document = json.loads(content)
        document["model"]["modelVersion"] = VERSION
    elif name == CONTRACT:
        document = json.loads(content)
        first, *others = document["classes"]
        document |= {"release": RELEASE, "version": VERSION, "classes": [*others, first]}
    else:
        return content
    return json.dumps(document).encode()
