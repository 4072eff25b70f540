"""Verified copies: what is loaded is what was checked, whatever happens to the model store meanwhile."""

import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from service.config.settings import Settings
from service.domain.archive import Archive, StoreError
from service.persistence.archives import copies
from service.persistence.archives.model_store import ModelStore
from service.persistence.database import Database
from service.telemetry.metrics import Metrics
from tests.stores import make_store

KINDS = ["workers", "grpc", "rest"]


def store_of(tmp_path: Path, kind: str = "grpc") -> tuple[ModelStore, Archive, Path]:
    """Return a store with one archive; TorchServe's copies go into `tmp_path / "copies"`."""
    make_store(tmp_path / "store", [("digits", "1.0", "fp32")])
    fields = {"model_store": tmp_path / "store", "backend": kind, "verified_archives_dir": tmp_path / "copies"}
    settings = Settings.model_validate(fields)
    store = ModelStore(settings, Database(settings.state_url), Metrics())
    (archive,) = store.catalog().archives
    return store, archive, tmp_path / "store" / archive.file


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_loaded_stays_as_it_was_checked(tmp_path: Path, kind: str) -> None:
    store, archive, path = store_of(tmp_path, kind)
    released = path.read_bytes()
    verified = store.verified(archive, threading.Event())
    path.write_bytes(b"swapped")
    assert verified.file.read() == released
    if kind != "workers":
        (copy,) = (tmp_path / "copies").iterdir()
        assert copy.name == verified.name
        assert copy.name.startswith(archive.sha256)
        assert copy.read_bytes() == released
        assert stat.S_IMODE(copy.stat().st_mode) == 0o444
    verified.close()
    assert list((tmp_path / "copies").iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_was_swapped_after_its_check_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    store, archive, path = store_of(tmp_path, kind)
    store.contract(archive)
    path.write_bytes(b"swapped")
    for look in (lambda: store.verified(archive, threading.Event()), lambda: store.contract(archive)):
        with pytest.raises(
            StoreError, match=rf"digits-1\.0\.mar: its sha256 is .*, the manifest says {archive.sha256}"
        ):
            look()
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_link_to_another_file_is_followed_and_checked(tmp_path: Path) -> None:
    store, archive, path = store_of(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    store.verified(archive, threading.Event()).close()
    (tmp_path / "elsewhere").write_bytes(b"swapped")
    with pytest.raises(StoreError, match="sha256"):
        store.verified(archive, threading.Event())


def test_a_pipe_in_the_store_holds_nobody_up(tmp_path: Path) -> None:
    store, archive, path = store_of(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="not a regular file"):
        store.verified(archive, threading.Event())


def test_copies_that_a_killed_gateway_left_are_removed_and_others_stay(tmp_path: Path) -> None:
    store, archive, _ = store_of(tmp_path)
    left, in_use = (f"{archive.sha256}-{number:08x}.mar" for number in range(2))
    (tmp_path / "copies" / left).write_bytes(b"x")
    others = {"digits-1.0.mar", f"{archive.sha256}.mar", f"x{left}"}  # the folder may be the wrong one
    for name in others:
        (tmp_path / "copies" / name).write_bytes(b"not ours")
    with (tmp_path / "copies" / in_use).open("wb") as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        verified = store.verified(archive, threading.Event())
        again = store.verified(archive, threading.Event())
        found = {each.name for each in (tmp_path / "copies").iterdir()}
        assert found == {in_use, verified.name, again.name, *others}
        verified.close()
        again.close()


@pytest.mark.parametrize("kind", ["workers", "grpc"])
def test_a_full_disk_is_said_so(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, archive, _ = store_of(tmp_path, kind)

    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(copies, "_clone", full)
    with pytest.raises(StoreError, match=r"cannot be copied into .*: the disk is full"):
        store.verified(archive, threading.Event())
    assert list((tmp_path / "copies").iterdir()) == []


def test_shared_blocks_are_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system can share blocks; here the copy is made in its place."""
    store, archive, path = store_of(tmp_path)

    def clone(source: object, copy: object) -> bool:
        copy.write(path.read_bytes())  # type: ignore[attr-defined]
        copy.flush()  # type: ignore[attr-defined]
        copy.seek(0)  # type: ignore[attr-defined]
        return True

    monkeypatch.setattr(copies, "_clone", clone)
    store.verified(archive, threading.Event()).close()
    path.write_bytes(b"swapped")
    with pytest.raises(StoreError, match="sha256"):
        store.verified(archive, threading.Event())


def test_copying_stops_when_nobody_waits_for_it(tmp_path: Path) -> None:
    store, archive, _ = store_of(tmp_path)
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoreError, match="stopped"):
        store.verified(archive, stop)
    assert list((tmp_path / "copies").iterdir()) == []


@pytest.mark.parametrize(
    ("place", "words"), [("store", "another folder"), ("file", "must be a folder"), ("open", "others can write")]
)
def test_a_folder_that_others_write_stops_the_start(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    fields = {"model_store": tmp_path / "store", "verified_archives_dir": tmp_path / place}
    with pytest.raises(ValueError, match=f"TORCHGATE_VERIFIED_ARCHIVES_DIR=.*: .*{words}"):
        Settings.model_validate(fields)
