"""The model store: archives never change, releases never collide, the manifest loses nothing."""

import hashlib
import json
import resource
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from service.domain.archive import TrustError
from service.persistence.archives.counters import Counters
from service.persistence.archives.manifest import read_catalog
from service.persistence.archives.trust import SignedManifest
from service.persistence.database import Database
from training.archive.archive import archive, check_archive
from training.archive.manifest import next_release, read_manifest, taken_releases, write_manifest
from training.archive.signatures import Signer, new_key, signer
from training.artifacts import Run
from training.errors import ArchiveError, SettingError, VersionExistsError
from training.options.config import ArchiveConfig

MEBIBYTE = 2**20
ROOT = Path(__file__).resolve().parents[3]


def content(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.glob("*.mar")}


def test_all_variants_are_packed_for_torchserve(exported: Run, archives: ArchiveConfig) -> None:
    entries = archive(exported, "toy", archives)
    assert [entry.version for entry in entries] == ["1.0", "1.0-int8-dynamic", "1.0-int8-static"]
    assert sorted(content(archives.model_store)) == [
        "toy-1.0-int8-dynamic.mar",
        "toy-1.0-int8-static.mar",
        "toy-1.0.mar",
    ]
    for entry in entries:
        with zipfile.ZipFile(archives.model_store / entry.file) as packed:
            assert sorted(packed.namelist()) == [
                "MAR-INF/MANIFEST.json",
                "contract.json",
                "model.pt",
                "some_handler.py",
            ]
            model = json.loads(packed.read("MAR-INF/MANIFEST.json"))["model"]
            contract = json.loads(packed.read("contract.json"))
            assert packed.read("model.pt") == exported.graph(entry.variant).read_bytes()
            assert packed.read("some_handler.py") == archives.handler.read_bytes()
        assert (model["modelName"], model["modelVersion"]) == ("toy", entry.version)
        assert (model["serializedFile"], model["handler"]) == ("model.pt", "some_handler.py")
        assert (contract["model"], contract["version"], contract["variant"]) == ("toy", entry.version, entry.variant)


def test_a_release_whose_manifest_cannot_be_written_is_taken_back(
    exported: Run, archives: ArchiveConfig, tmp_path: Path
) -> None:
    store, key = archives.model_store, tmp_path / "key"
    new_key(key)
    (first, *_) = archive(exported, "toy", replace(archives, signing_key_file=key))
    older = [replace(first, version=f"0.{n}", release=f"0.{n}") for n in range(20_000)]
    write_manifest(store, [first, *older], signer(key, 1.0))
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    assert len(before["manifest.json"]) > 2 * MEBIBYTE > max(len(each) for each in content(store).values())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MEBIBYTE, limits[1]))
    try:
        with pytest.raises(ArchiveError, match=r"cannot be written: File too large\. It is as it was before"):
            archive(exported, "toy", replace(archives, signing_key_file=key))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before
    assert next_release(taken_releases(store, "toy")) == "1.1"


def test_a_manifest_without_room_for_its_signature_stays_as_it_was(
    exported: Run, archives: ArchiveConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, key = archives.model_store, tmp_path / "key"
    new_key(key)
    archive(exported, "toy", replace(archives, signing_key_file=key))
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    monkeypatch.setattr(Signer, "signature", lambda *_: b"x" * (2 * MEBIBYTE))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MEBIBYTE - 1, limits[1]))
    try:
        with pytest.raises(ArchiveError, match="File too large"):
            archive(exported, "toy", replace(archives, signing_key_file=key))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before


def test_the_manifest_is_signed_with_a_key_that_the_gateway_checks_it_by(
    exported: Run, archives: ArchiveConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = new_key(tmp_path / "key")
    (tmp_path / "trusted").mkdir()
    shutil.copy(public, tmp_path / "trusted")
    expiries: list[float] = []
    counters = Counters(Database(f"sqlite:///{tmp_path}/state.db"))
    trust = SignedManifest(tmp_path / "trusted", counters, expiries.append)
    signing = replace(archives, signing_key_file=tmp_path / "key", signature_days=2)
    store = archives.model_store
    archive(exported, "toy", signing)
    assert len(read_catalog(store, trust).archives) == 3
    assert expiries[0] == pytest.approx(time.time() + 2 * 86400, abs=600)
    archive(exported, "toy", archives)  # without the key: the signature is the old manifest's
    assert "python -m training sign" in capsys.readouterr().out
    with pytest.raises(TrustError, match=r"manifest\.json\.sig is not the signature"):
        read_catalog(store, trust)
    archive(exported, "toy", signing)
    assert len(read_catalog(store, trust).archives) == 9


@pytest.mark.parametrize("content", [None, "short"])
def test_a_key_that_is_none_is_refused_before_any_work(
    archives: ArchiveConfig, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    with pytest.raises(SettingError, match="--signing-key-file"):
        check_archive("toy", replace(archives, signing_key_file=tmp_path / "key"))
    with pytest.raises(SettingError, match="--signature-days"):
        check_archive("toy", replace(archives, signature_days=0))


def test_manifest_describes_what_is_there_and_nothing_else_is_left(exported: Run, archives: ArchiveConfig) -> None:
    entries = archive(exported, "toy", archives)
    assert read_manifest(archives.model_store) == entries
    for entry in entries:
        packed = (archives.model_store / entry.file).read_bytes()
        assert entry.sha256 == hashlib.sha256(packed).hexdigest()
        assert entry.size_bytes == len(packed)
    names = {path.name for path in archives.model_store.iterdir()}
    assert names == {".lock", "manifest.json", *(entry.file for entry in entries)}


def test_archives_never_change_and_the_next_release_is_taken(exported: Run, archives: ArchiveConfig) -> None:
    archive(exported, "toy", archives)
    before = content(archives.model_store)
    entries = archive(exported, "toy", archives)
    assert {entry.release for entry in entries} == {"1.1"}
    after = content(archives.model_store)
    assert before.items() < after.items()
    assert len(read_manifest(archives.model_store)) == 6


def test_release_that_is_taken_is_refused_by_name(exported: Run, archives: ArchiveConfig) -> None:
    wanted = replace(archives, version="2.0")
    archive(exported, "toy", wanted)
    before = content(archives.model_store)
    with pytest.raises(VersionExistsError, match=r"toy 2\.0 is in .*store already"):
        archive(exported, "toy", wanted)
    assert content(archives.model_store) == before
    archive(exported, "other", wanted)
    assert archive(exported, "toy", archives)[0].release == "2.1"


def test_file_without_an_entry_counts_as_taken(exported: Run, archives: ArchiveConfig) -> None:
    """A trainer that died between the two leaves this; the archive may be in use all the same."""
    archives.model_store.mkdir()
    orphan = archives.model_store / "toy-1.0-int8-dynamic.mar"
    orphan.write_bytes(b"precious")
    assert archive(exported, "toy", archives)[0].release == "1.1"
    assert orphan.read_bytes() == b"precious"


def test_trainers_at_once_lose_nothing(exported: Run, archives: ArchiveConfig) -> None:
    command = [sys.executable, "-m", "training", "archive", "--run", str(exported.folder)]
    command += ["--model-store", str(archives.model_store), "--handler", str(archives.handler), "--name"]
    trainers = [subprocess.Popen([*command, model], cwd=ROOT) for model in ("toy", "toy", "other")]
    assert [trainer.wait(timeout=180) for trainer in trainers] == [0, 0, 0]
    listed = {(entry.model, entry.version): entry for entry in read_manifest(archives.model_store)}
    releases = [("other", "1.0"), ("toy", "1.0"), ("toy", "1.1")]
    assert sorted(listed) == [
        (model, f"{release}{suffix}") for model, release in releases for suffix in ("", "-int8-dynamic", "-int8-static")
    ]
    for entry in listed.values():
        packed = (archives.model_store / entry.file).read_bytes()
        assert hashlib.sha256(packed).hexdigest() == entry.sha256


def test_failure_leaves_the_store_as_it_was(
    exported: Run, archives: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(exported, "toy", archives)
    before, manifest = content(archives.model_store), read_manifest(archives.model_store)
    monkeypatch.setattr("training.archive.archive.sys.executable", "/bin/false")
    with pytest.raises(ArchiveError, match="torch-model-archiver failed for toy"):
        archive(exported, "toy", archives)
    assert content(archives.model_store) == before
    assert read_manifest(archives.model_store) == manifest
    assert not list(archives.model_store.glob(".archive-*"))


@pytest.mark.parametrize("name", ["Digits", "my model", "", "-x", "a/b", "ä"])
def test_names_that_torchserve_or_a_url_cannot_carry_are_refused(archives: ArchiveConfig, name: str) -> None:
    with pytest.raises(SettingError, match="--name"):
        check_archive(name, archives)


@pytest.mark.parametrize("version", ["1", "v1.0", "1.0-int8", "1.0.0.0", ""])
def test_releases_that_are_no_numbers_are_refused(archives: ArchiveConfig, version: str) -> None:
    with pytest.raises(SettingError, match="--version"):
        check_archive("toy", replace(archives, version=version))


def test_handler_that_is_not_there_is_refused(archives: ArchiveConfig, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"--handler: .*nowhere\.py"):
        check_archive("toy", replace(archives, handler=tmp_path / "nowhere.py"))


def test_broken_manifest_is_named(archives: ArchiveConfig) -> None:
    archives.model_store.mkdir()
    (archives.model_store / "manifest.json").write_text("{}")
    with pytest.raises(ArchiveError, match=r"manifest\.json is not a manifest"):
        check_archive("toy", archives)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [(set(), "1.0"), ({"1.0"}, "1.1"), ({"1.9", "1.10"}, "1.11"), ({"2.0.5", "1.7"}, "2.1"), ({"10.0", "9.9"}, "10.1")],
)
def test_next_release_raises_the_minor_number(taken: set[str], expected: str) -> None:
    assert next_release(taken) == expected


def test_models_whose_names_begin_alike_do_not_share_releases(tmp_path: Path) -> None:
    for name in ("a-1.0.mar", "a-b-1.7.mar", "a-b-1.8-int8-dynamic.mar", "ab-3.0.mar", "a-notes.mar"):
        (tmp_path / name).touch()
    assert taken_releases(tmp_path, "a") == {"1.0"}
    assert taken_releases(tmp_path, "a-b") == {"1.7", "1.8"}
