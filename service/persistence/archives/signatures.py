"""The signature of a manifest: what it says, and whether a trusted key made it. Works offline."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from service.config.environment import read_file
from service.domain.archive import StoreError, TrustError

SIGNATURE = "manifest.json.sig"
KEYS = "*.pub"
MOST_BYTES = 16 * 1024  # of a signature or a public key
KEY_ID_CHARACTERS = 16
RENEW = "sign it with `python -m training sign`"

Keys = Mapping[str, Ed25519PublicKey]


@dataclass(frozen=True)
class Signed:
    """What a valid signature says of a manifest."""

    key_id: str
    counter: int  # grows with each signature of a store
    expires: datetime
    sha256: str  # of the manifest


class _Document(BaseModel):
    schema_version: Literal[1]
    key_id: str = Field(pattern=rf"^[0-9a-f]{{{KEY_ID_CHARACTERS}}}$")
    counter: int = Field(ge=1, lt=2**53)
    expires: str = Field(max_length=40)
    signature: str = Field(max_length=200)


class _Expiry(BaseModel):
    expires: AwareDatetime


def read_keys(folder: Path) -> Keys:
    """Return the public keys in `folder` by their ids; raises StoreError for a file that is none."""
    keys = {}
    try:
        for path in sorted(folder.glob(KEYS)):
            key = _public_key(path)
            keys[key_id_of(key)] = key
    except OSError as error:
        raise StoreError(f"the trusted keys in {folder} cannot be read: {error.filename}: {error.strerror}") from error
    return keys


def key_id_of(key: Ed25519PublicKey) -> str:
    """Return the key's id: the start of the SHA-256 of its 32 bytes."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:KEY_ID_CHARACTERS]


def verified(store: Path, manifest: bytes, keys: Keys, folder: Path) -> Signed:
    """Return what the store's signature says of `manifest`; `folder` is where the keys came from.

    Raises:
        TrustError: there is no signature, or it is not by one of the keys.
    """
    path = store / SIGNATURE
    try:
        written = read_file(path, MOST_BYTES)
    except FileNotFoundError as error:
        raise TrustError("unsigned", f"{path} is missing: {RENEW}") from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    try:
        found = _Document.model_validate_json(written)
        expires = _Expiry(expires=found.expires).expires
        signature = base64.b64decode(found.signature, validate=True)
    except (ValidationError, ValueError) as error:
        raise TrustError("unsigned", f"{path} is no signature of this release: {RENEW}") from error
    key = keys.get(found.key_id)
    if key is None:
        known = f"has {', '.join(keys)}" if keys else "has none"
        text = f"{path} is by the key {found.key_id}, and {folder} {known}: add its public key there, or {RENEW}"
        raise TrustError("unknown_key", text)
    sha256 = hashlib.sha256(manifest).hexdigest()
    try:
        key.verify(signature, statement(found.key_id, found.counter, found.expires, sha256))
    except InvalidSignature as error:
        text = f"{path} is not the signature of this manifest. Was one of the two changed? If it was you: {RENEW}"
        raise TrustError("forged", text) from error
    return Signed(found.key_id, found.counter, expires, sha256)


def statement(key_id: str, counter: int, expires: str, sha256: str) -> bytes:
    """Return the bytes that are signed; the first line keeps a signature of anything else from passing for one."""
    lines = ("torchgate manifest signature 1", f"key {key_id}", f"counter {counter}", f"expires {expires}")
    return "\n".join((*lines, f"sha256 {sha256}", "")).encode()


def _public_key(path: Path) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(read_file(path, MOST_BYTES))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise StoreError(f"{path} is not a public key in PEM: remove it, or put an Ed25519 key there") from error
    if not isinstance(key, Ed25519PublicKey):
        raise StoreError(f"{path} is not an Ed25519 key: `python -m training keys new` makes one")
    return key
