"""What a manifest may say."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from service.domain.archive import StoreError
from service.persistence.archives.manifest import read_catalog
from service.persistence.archives.signatures import read_keys, verified
from service.persistence.archives.trust import AnyManifest
from tests.stores import make_store

BAD_NAMES = ["", "a\r\nX-Evil: 1", "a/b", "../a", "a\0b", "ünïcode", "-a", ".a", "a b", "a" * 101, "a\n"]


def with_field(store: Path, field: str, value: str) -> None:
    make_store(store, [("digits", "1.0", "fp32")])
    manifest = json.loads((store / "manifest.json").read_text())
    manifest["archives"][0][field] = value
    (store / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("field", ["model", "version", "release", "variant"])
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_none_is_refused(tmp_path: Path, field: str, name: str) -> None:
    with_field(tmp_path, field, name)
    with pytest.raises(StoreError, match=rf"manifest\.json: archives\.0\.{field}: ") as refused:
        read_catalog(tmp_path, AnyManifest())
    assert "\n" not in str(refused.value)
    assert "\0" not in str(refused.value)
    assert len(str(refused.value)) < 600


READERS: dict[str, Callable[[Path], object]] = {
    "manifest.json": lambda store: read_catalog(store, AnyManifest()),
    "manifest.json.sig": lambda store: verified(store, b"", {}, store),
    "release.pub": read_keys,
}


@pytest.mark.parametrize("place", READERS)
@pytest.mark.parametrize("kind", ["pipe", "folder", "endless"])
def test_what_is_no_file_and_what_might_never_end_is_refused_at_once(tmp_path: Path, place: str, kind: str) -> None:
    make_store(tmp_path, [("digits", "1.0", "fp32")])
    path = tmp_path / place
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case _:
            path.touch()
            os.truncate(path, 2**40)  # with no block on the disk
    reason = "it is larger than" if kind == "endless" else "it is not a regular file"
    with pytest.raises(StoreError, match=rf"{place}: {reason}"):
        READERS[place](tmp_path)


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "1.0-int8-dynamic", "a" * 100])
def test_a_name_is_a_name(tmp_path: Path, name: str) -> None:
    with_field(tmp_path, "model", name)
    assert read_catalog(tmp_path, AnyManifest()).models == (name,)
