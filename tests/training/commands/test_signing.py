"""Keys and signatures from the command line."""

import json
import os
import stat
from pathlib import Path

import pytest

from tests.stores import make_store
from training.archive.signatures import new_key, signer
from training.commands.cli import dispatch
from training.errors import ArchiveError, SettingError


def signature(store: Path) -> dict[str, object]:
    document: dict[str, object] = json.loads((store / "manifest.json.sig").read_text())
    return document


def test_a_key_is_made_for_its_owner_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "keys" / "release"
    dispatch(["keys", "new", str(key)], {})
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    public = key.with_name("release.pub").read_text()
    told = capsys.readouterr().out
    dispatch(["keys", "show", str(key)], {})
    key_id, _, pem = capsys.readouterr().out.partition("\n")
    assert key_id in told
    assert pem == public
    with pytest.raises(SettingError, match="exists already"):
        dispatch(["keys", "new", str(key)], {})
    with pytest.raises(SettingError, match="not 'list'"):
        dispatch(["keys", "list"], {})


def test_a_manifest_is_signed_anew_and_archives_are_revoked(tmp_path: Path) -> None:
    store, key = tmp_path / "store", tmp_path / "key"
    make_store(store, [("digits", "1.0", "fp32"), ("digits", "1.1", "fp32")])
    new_key(key)
    environment = {"TORCHGATE_MODEL_STORE": str(store), "TORCHGATE_SIGNING_KEY_FILE": str(key)}
    dispatch(["sign"], environment)
    first = signature(store)
    dispatch(["sign", "--signature-days", "1", "--revoke", "digits-1.0.mar"], environment)
    second = signature(store)
    assert first["key_id"] == second["key_id"]
    assert int(str(second["counter"])) > int(str(first["counter"])) > 1_700_000_000
    assert str(second["expires"]) < str(first["expires"])
    assert [each["file"] for each in json.loads((store / "manifest.json").read_text())["archives"]] == [
        "digits-1.1.mar"
    ]
    assert (store / "digits-1.0.mar").exists()
    with pytest.raises(ArchiveError, match=r"does not list digits-1\.0\.mar; it lists digits-1\.1\.mar"):
        dispatch(["sign", "--revoke", "digits-1.0.mar"], environment)


def test_a_signing_key_that_everybody_can_read_or_that_is_no_file_is_refused(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(SettingError, match=r"key is open to every user: run chmod o= .*key"):
        signer(tmp_path / "key", days=1)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(SettingError, match="holds no private key"):
            signer(path, days=1)


def test_what_is_missing_is_said_with_the_next_step(tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    with pytest.raises(SettingError, match="TORCHGATE_SIGNING_KEY_FILE"):
        dispatch(["sign", "--model-store", str(tmp_path)], {})
    with pytest.raises(ArchiveError, match="there is no"):
        dispatch(["sign", "--model-store", str(tmp_path), "--signing-key-file", str(tmp_path / "key")], {})
    with pytest.raises(SettingError, match=r"keys new FILE.*TORCHGATE_SIGNING_KEY_FILE"):
        dispatch(["sign"], {"TORCHGATE_MANIFEST_KEY_FILE": "key"})
