"""Manifests, signatures and archives, from whoever can write into the model store."""

import base64
import hashlib
import io
import json
import stat
import tempfile
import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given
from pydantic import TypeAdapter

from service.backends.embedded import archive as embedded
from service.domain.archive import Archive, StoreError
from service.domain.backend import Target
from service.persistence.archives.contents import read_contract, require_few_workers
from service.persistence.archives.manifest import read_catalog
from service.persistence.archives.signatures import SIGNATURE, key_id_of, read_keys, statement, verified
from service.persistence.archives.trust import AnyManifest
from tests.fuzz.cost import SLACK_BYTES, bounded, require_short
from tests.fuzz.documents import DEEP, changed
from tests.fuzz.profile import fuzzed
from tests.signing import new_key, trust
from tests.stores import make_contract

TARGET = Target("digits", "1.0")
ARCHIVE = Archive(
    file="digits-1.0.mar",
    model="digits",
    version="1.0",
    release="1.0",
    variant="fp32",
    sha256="0" * 64,
    size_bytes=1,
    created="2026-01-01T00:00:00Z",
)
MAR = "MAR-INF/MANIFEST.json"
MODEL = {"modelName": "digits", "modelVersion": "1.0", "handler": "h.py"}

# The manifest of the store.

ENTRY = {
    "file": "digits-1.0.mar",
    "model": "digits",
    "version": "1.0",
    "release": "1.0",
    "variant": "fp32",
    "sha256": "0" * 64,
    "size_bytes": 1,
    "created": "2026-01-01T00:00:00Z",
}
MANIFEST = {"schema_version": 1, "archives": [ENTRY, {**ENTRY, "version": "1.0-int8", "variant": "int8"}]}


@pytest.fixture(scope="module")
def store() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-store-"))


@fuzzed(100)
@given(written=changed(MANIFEST) | st.binary(max_size=50))
def test_a_manifest_is_read_or_refused(store: Path, written: bytes) -> None:
    (store / "manifest.json").write_bytes(written)
    with bounded(len(written), bytes_per_byte=50):
        try:
            catalog = read_catalog(store, AnyManifest())
        except StoreError as error:
            require_short(error, 2000)
            return
    for archive in catalog.archives:
        assert archive.file == Path(archive.file).name
        for name in (archive.model, archive.version, archive.release, archive.variant):
            assert name == Path(name).name
            assert name.isascii()
            assert name.isprintable()


# Its signature.

KEY = new_key()
OTHER = new_key()
EXPIRES = "2027-01-01T00:00:00+00:00"


def signature_of(manifest: bytes) -> dict[str, Any]:
    key_id, sha256 = key_id_of(KEY.public_key()), hashlib.sha256(manifest).hexdigest()
    signature = base64.b64encode(KEY.sign(statement(key_id, 7, EXPIRES, sha256))).decode()
    return {"schema_version": 1, "key_id": key_id, "counter": 7, "expires": EXPIRES, "signature": signature}


SIGNED = signature_of(b"{}")


@fuzzed(100)
@example(written=json.dumps({**SIGNED, "expires": "0001-01-01T00:00:00+23:59"}).encode(), manifest=b"{}")
@given(written=changed(SIGNED) | st.binary(max_size=50), manifest=st.sampled_from([b"{}", b"{} "]))
def test_a_signature_is_valid_only_as_it_was_made(store: Path, written: bytes, manifest: bytes) -> None:
    (store / SIGNATURE).write_bytes(written)
    keys = read_keys(trust(store / "keys", KEY, OTHER))
    with bounded(len(written), bytes_per_byte=50):
        try:
            signed = verified(store, manifest, keys, store / "keys")
        except StoreError as error:
            require_short(error, 1000)
            return
    assert manifest == b"{}"
    assert (signed.key_id, signed.counter, signed.expires.isoformat()) == (SIGNED["key_id"], 7, EXPIRES)


PEM = trust(Path(tempfile.mkdtemp(prefix="fuzz-keys-")), KEY) / "0.pub"
PEM_BYTES = PEM.read_bytes()


@fuzzed(120)
@given(
    written=st.builds(
        lambda place, part: PEM_BYTES[:place] + part + PEM_BYTES[place + len(part) :],
        st.integers(0, len(PEM_BYTES)),
        st.binary(max_size=4),
    )
    | st.binary(max_size=100)
    | st.binary(max_size=60).map(
        lambda der: b"-----BEGIN PUBLIC KEY-----\n" + base64.b64encode(der) + b"\n-----END PUBLIC KEY-----\n"
    )
)
def test_a_public_key_is_read_or_refused(store: Path, written: bytes) -> None:
    folder = trust(store / "other-keys")
    (folder / "0.pub").write_bytes(written)
    try:
        keys = read_keys(folder)
    except StoreError as error:
        require_short(error, 1000)
    else:
        assert len(keys) == 1


# The contract of an archive.

CONTRACT = make_contract("digits", "1.0", "fp32")
HISTOGRAM = {"edges": [0, 1], "counts": [10**400]}


# Names that are not UTF-8, documents too deep to be written again, counts that no float holds.
@fuzzed(120)
@example(written=json.dumps({**CONTRACT, "classes": ["a", "b", "c", "\udcff"]}).encode())
@example(written=json.dumps(CONTRACT).encode()[:-1] + b', "more": ' + b"[" * 300 + b"]" * 300 + b"}")
@example(
    written=json.dumps(
        {**CONTRACT, "reference": {"class_prior": [0.25] * 4, "confidence_histogram": HISTOGRAM}}
    ).encode()
)
@given(written=changed(CONTRACT))
def test_a_contract_is_read_or_refused(written: bytes) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archived:
        archived.writestr("contract.json", written)
    try:
        contract = read_contract(content, ARCHIVE)
    except StoreError:
        return
    # What /models shows, and what the drift monitor computes.
    TypeAdapter(dict[str, Any]).dump_json(contract.summary())
    "".join(contract.classes).encode()
    if contract.reference is not None:
        assert sum(contract.reference.class_counts) >= 0


# Archives.

NAMES = st.sampled_from(
    [
        *("contract.json", "h.py", MAR, "config.yaml", "a", "a/b", "a/b/c", "A", "b", "./h.py", "h.py/", "a//b"),
        *("../x", "/x", "a/../../x", "..", ".", "", "C:\\x", "a\\..\\x", "x" * 250, "ä", "\u202ey.p", "h.py\0.txt"),
        *("a/" * 20 + "b", "MAR-INF/manifest.json", "mar-inf/MANIFEST.json", "\uff21"),
    ]
)
KINDS = st.sampled_from([0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
PACKED_BYTES = 300_000  # which a few hundred hold
CONTENTS = st.sampled_from([b"", b"x", b"x" * 2000, b"\0" * PACKED_BYTES, DEEP]) | st.binary(max_size=50)
READ_BYTES = SLACK_BYTES + 4 * PACKED_BYTES  # a manifest and a contract of that size are unpacked and decoded


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """Return an archive, maybe one that lies about what it holds."""
    content = io.BytesIO()
    good = [
        ("h.py", b"x"),
        (MAR, json.dumps({"model": MODEL}).encode()),
        ("contract.json", json.dumps(CONTRACT).encode()),
    ]
    members = [(name, data, 0, True) for name, data in good if draw(st.integers(0, 9))]
    members += draw(st.lists(st.tuples(NAMES, CONTENTS, KINDS, st.booleans()), max_size=4))
    if draw(st.booleans()):
        members.append((MAR, draw(changed({"model": MODEL})), 0, False))
    with zipfile.ZipFile(content, "w") as archived:
        for name, data, kind, is_packed in draw(st.permutations(members)):
            info = zipfile.ZipInfo("x")
            info.filename, info.external_attr = name, kind << 16
            info.compress_type = zipfile.ZIP_DEFLATED if is_packed else zipfile.ZIP_STORED
            with warnings.catch_warnings():  # of a name that is there twice
                warnings.simplefilter("ignore")
                archived.writestr(info, data)
    written = bytearray(content.getvalue())
    for place, value in draw(st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=4)), max_size=2)):
        # Where headers are, most of the time: sizes, flags, names.
        starts = [at for mark in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06") for at in _places(written, mark)]
        at = starts[place % len(starts)] + place // 7 % 46 if starts else place % (len(written) + 1)
        written[at : at + len(value)] = value
    end = draw(st.integers(0, len(written))) if not draw(st.integers(0, 9)) else len(written)
    return bytes(written[:end])


def _places(data: bytearray, mark: bytes) -> list[int]:
    found, at = [], data.find(mark)
    while at >= 0:
        found.append(at)
        at = data.find(mark, at + 1)
    return found


@fuzzed(120)
@given(data=archives())
def test_an_archive_is_unpacked_below_its_folder_or_refused(store: Path, data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=store) as outside:
        folder = Path(outside) / "in"
        with bounded(len(data), bytes_per_byte=120, calls_per_byte=200, slack_bytes=READ_BYTES):
            try:
                unpacked = embedded.unpack(io.BytesIO(data), folder, TARGET, threading.Event())
            except StoreError as error:
                unpacked = None
                require_short(error, 2000)
        assert [path.name for path in Path(outside).iterdir()] in ([], ["in"])
        num_bytes = 0
        for path in folder.rglob("*"):
            assert not path.is_symlink()
            assert path.is_dir() or path.is_file()
            num_bytes += path.stat().st_size if path.is_file() else 0
        assert num_bytes <= embedded.SMALL_BYTES + embedded.MAX_RATIO * len(data)
        if unpacked is not None:
            require_same_files(data, folder)
            assert (folder / "h.py").is_file()


def require_same_files(data: bytes, folder: Path) -> None:
    """Fail unless the folder holds what the standard library's tool makes of the archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archived:
        files = {info.filename: archived.read(info) for info in archived.infolist() if not info.is_dir()}
    assert files == {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@fuzzed(150)
@given(data=archives())
def test_the_gateway_reads_an_archive_or_refuses_it(data: bytes) -> None:
    with bounded(len(data), bytes_per_byte=200, calls_per_byte=200, slack_bytes=READ_BYTES):
        for read in (
            lambda: read_contract(io.BytesIO(data), ARCHIVE),
            lambda: require_few_workers(io.BytesIO(data), 4),
        ):
            try:
                read()
            except StoreError as error:
                require_short(error, 10_000)
