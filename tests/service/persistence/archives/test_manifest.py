"""What a manifest may say."""

import json
from pathlib import Path

import pytest

from service.domain.archive import StoreError
from service.persistence.archives.manifest import read_catalog
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


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "1.0-int8-dynamic", "a" * 100])
def test_a_name_is_a_name(tmp_path: Path, name: str) -> None:
    with_field(tmp_path, "model", name)
    assert read_catalog(tmp_path, AnyManifest()).models == (name,)
