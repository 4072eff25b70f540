"""Signed model stores for tests of the gateway."""

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from service.persistence.archives.signatures import key_id_of, statement

Key = Ed25519PrivateKey


def new_key() -> Key:
    return Ed25519PrivateKey.generate()


def trust(folder: Path, *keys: Key) -> Path:
    """Have `folder` hold the public keys of these, and no others."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for number, key in enumerate(keys):
        pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (folder / f"{number}.pub").write_bytes(pem)
    return folder


def sign(store: Path, key: Key, counter: int, days: float = 30) -> None:
    """Sign the manifest that is there."""
    expires = (datetime.now(UTC) + timedelta(days=days)).isoformat()
    key_id = key_id_of(key.public_key())
    sha256 = hashlib.sha256((store / "manifest.json").read_bytes()).hexdigest()
    signature = base64.b64encode(key.sign(statement(key_id, counter, expires, sha256))).decode()
    document = {"key_id": key_id, "counter": counter, "expires": expires, "signature": signature}
    (store / "manifest.json.sig").write_text(json.dumps({"schema_version": 1, **document}))


def delist(store: Path, file: str) -> None:
    """Take an archive out of the manifest."""
    manifest = json.loads((store / "manifest.json").read_text())
    manifest["archives"] = [entry for entry in manifest["archives"] if entry["file"] != file]
    (store / "manifest.json").write_text(json.dumps(manifest))
