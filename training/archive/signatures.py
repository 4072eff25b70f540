"""Keys that sign the model store's manifest, and the signature beside it: Ed25519, offline."""

import base64
import hashlib
import json
import os
import stat
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from training.artifacts import write_bytes
from training.errors import SettingError

SCHEMA_VERSION = 1
KEY_ID_CHARACTERS = 16
MOST_DAYS = 3650
MOST_KEY_BYTES = 16 * 1024


@dataclass(frozen=True)
class Signer:
    """Signs manifests for so many days."""

    key: Ed25519PrivateKey
    days: float

    def sign(self, manifest: Path) -> None:
        """Write the signature of a manifest beside it."""
        write_bytes(signature_path(manifest), self.signature(manifest, manifest.read_bytes()))

    def signature(self, manifest: Path, content: bytes) -> bytes:
        """Return the signature of what a manifest shall hold; its counter is above that of the present one."""
        counter = max(_counter(signature_path(manifest)) + 1, int(time.time()))
        expires = (datetime.now(UTC) + timedelta(days=self.days)).isoformat(timespec="seconds")
        key_id, sha256 = key_id_of(self.key.public_key()), hashlib.sha256(content).hexdigest()
        document = {
            "schema_version": SCHEMA_VERSION,
            "key_id": key_id,
            "counter": counter,
            "expires": expires,
            "signature": base64.b64encode(self.key.sign(statement(key_id, counter, expires, sha256))).decode(),
        }
        return f"{json.dumps(document, indent=1)}\n".encode()


def signer(key_file: Path | None, days: float) -> Signer | None:
    """Return who signs, None without a key; raises SettingError for a file that holds no key."""
    if not 0 < days <= MOST_DAYS:
        raise SettingError(f"--signature-days is {days:g}; allowed is more than 0, at most {MOST_DAYS}")
    return None if key_file is None else Signer(read_key(key_file), days)


def signature_path(manifest: Path) -> Path:
    """Return where the signature of a manifest lies."""
    return manifest.with_name(f"{manifest.name}.sig")


def statement(key_id: str, counter: int, expires: str, sha256: str) -> bytes:
    """Return the bytes that are signed; the first line keeps a signature of anything else from passing for one."""
    lines = ("torchgate manifest signature 1", f"key {key_id}", f"counter {counter}", f"expires {expires}")
    return "\n".join((*lines, f"sha256 {sha256}", "")).encode()


def key_id_of(key: Ed25519PublicKey) -> str:
    """Return the key's id: the start of the SHA-256 of its 32 bytes."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:KEY_ID_CHARACTERS]


def new_key(path: Path) -> Path:
    """Write a new private key, which its owner alone may read, and its public key beside it; return the latter's path.

    Raises SettingError if one of the two files is there already.
    """
    key = Ed25519PrivateKey.generate()
    public = path.with_name(f"{path.name}.pub")
    if public.exists():
        raise SettingError(f"{public} exists already: name another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise SettingError(f"{path} exists already: name another file") from error
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    write_bytes(public, public_pem(key.public_key()))
    return public


def read_key(path: Path) -> Ed25519PrivateKey:
    """Return a private key; raises SettingError for a file that holds none, or that everybody can read."""
    try:
        status = path.stat()
        is_key = stat.S_ISREG(status.st_mode) and status.st_size <= MOST_KEY_BYTES
        written = path.read_bytes() if is_key else b""
    except OSError as error:
        raise SettingError(f"--signing-key-file: {path}: {error.strerror}") from error
    if is_key and status.st_mode & 0o007:
        raise SettingError(f"--signing-key-file: {path} is open to every user: run chmod o= {path}")
    try:
        key = load_pem_private_key(written, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingError(f"--signing-key-file: {path} holds no private key in PEM without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingError(f"--signing-key-file: {path} is not an Ed25519 key: `python -m training keys new` makes one")
    return key


def public_pem(key: Ed25519PublicKey) -> bytes:
    """Return the public key as the gateway reads it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _counter(path: Path) -> int:
    """Return the counter of the signature that is there, 0 if there is none: the clock is ahead of any honest one."""
    try:
        return int(json.loads(path.read_bytes())["counter"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
