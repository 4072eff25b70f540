"""Archives that want out of their folder, or to fill the disk."""

import errno
import io
import json
import stat
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from service.backends.embedded import archive as subject
from service.backends.embedded.archive import MANIFEST, unpack
from service.domain.archive import StoreError
from service.domain.backend import Target
from tests.odd_archive import TARGET, write_archive

GOOD_MANIFEST = {"model": {"modelName": "odd", "modelVersion": "1.0", "handler": "odd.py"}}


def unpacked(path: Path, target: Target = TARGET) -> subject.Unpacked:
    with path.open("rb") as file:
        return unpack(file, path.parent / "out", target, threading.Event())


def with_member(path: Path, member: str | zipfile.ZipInfo, content: bytes = b"x", compression: int = 0) -> Path:
    write_archive(path)
    with zipfile.ZipFile(path, "a", compression) as archive:
        archive.writestr(member, content)
    return path


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def test_a_good_one_lies_in_its_folder(tmp_path: Path) -> None:
    done = unpacked(with_member(tmp_path / "a.mar", "sub/deep/file.txt", b"text"))
    assert (done.folder / "sub/deep/file.txt").read_bytes() == b"text"
    assert done.handler == "odd.py"
    assert stat.S_IMODE(done.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "name",
    [
        "../out.txt",
        "/etc/out.txt",
        "a/../../b",
        "a//b",
        "./a",
        "C:/a",
        "C:a",
        "a\\..\\b",
        "a\nb",
        "a" * 300,
        "/".join("a" * 20),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    path = with_member(tmp_path / "a.mar", name)
    with pytest.raises(StoreError, match="name that leads out"):
        unpacked(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.mar", "out"]
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: with_member(path, link("way-out"), b"/etc"), "link or a device"),
        (lambda path: with_member(path, "odd.py"), "twice"),
        (lambda path: with_member(path, "ODD.py"), "twice"),
        (lambda path: with_member(path, "odd.py/inside"), "as a file and as a folder"),
        (lambda path: with_member(path, "zeros", bytes(2**26), zipfile.ZIP_DEFLATED), "more than 100 times its size"),
        (lambda path: with_member(path, "lzma", b"x", zipfile.ZIP_LZMA), "compressed in an unusual way"),
        (lambda path: path.write_bytes(b"PK nothing"), "not a zip file"),
        (lambda path: write_archive(path) and path.write_bytes(path.read_bytes()[:-30]), "cannot be unpacked"),
    ],
)  # fmt: skip
def test_one_that_is_not_as_it_should_be_is_refused(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    make(tmp_path / "a.mar")
    with pytest.raises(StoreError, match=words):
        unpacked(tmp_path / "a.mar")


def test_bounds_on_members_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_member(tmp_path / "a.mar", "more")
    monkeypatch.setattr(subject, "MAX_MEMBERS", 3)
    with pytest.raises(StoreError, match="4 members; at most 3"):
        unpacked(path)
    monkeypatch.undo()
    (tmp_path / "out").rmdir()
    monkeypatch.setattr(subject, "MAX_UNPACKED_BYTES", 10)
    with pytest.raises(StoreError, match="at most 10 are allowed"):
        unpacked(path)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (None, f"it has no {MANIFEST}"),
        ("{", MANIFEST),
        ({"model": {}}, "handler"),
        ({"model": {**GOOD_MANIFEST["model"], "handler": "../../x.py"}}, "handler"),
        ({"model": {**GOOD_MANIFEST["model"], "handler": "other.py"}}, "does not hold its handler other.py"),
        ({"model": {**GOOD_MANIFEST["model"], "modelVersion": "2.0"}}, "it holds odd 2.0, not odd 1.0"),
    ],
)
def test_the_manifest_is_checked(tmp_path: Path, manifest: object, words: str) -> None:
    path = tmp_path / "a.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("odd.py", "")
        if manifest is not None:
            archive.writestr(MANIFEST, manifest if isinstance(manifest, str) else json.dumps(manifest))
    with pytest.raises(StoreError, match=words):
        unpacked(path)


def test_a_full_disk_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mar"
    write_archive(path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(subject, "_write", full)
    with pytest.raises(StoreError, match="the disk is full"):
        unpacked(path)


def test_it_stops_when_told(tmp_path: Path) -> None:
    path = tmp_path / "a.mar"
    write_archive(path)
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoreError, match="stopped"):
        unpack(io.BytesIO(path.read_bytes()), tmp_path / "out", TARGET, stop)
