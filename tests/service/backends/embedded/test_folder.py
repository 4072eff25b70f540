from pathlib import Path

import pytest

from service.backends.embedded.folder import LOCK, PREFIX, PrivateFolder, sweep


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_one_in_use_is_left_and_one_left_behind_is_removed(temporary: Path) -> None:
    mine = PrivateFolder()
    path = mine.path()
    assert mine.path() == path
    left = temporary / f"{PREFIX}left"
    (left / "1").mkdir(parents=True)
    (left / LOCK).touch()
    assert sweep() == [left]
    assert path.exists()
    mine.remove()
    mine.remove()
    assert list(temporary.iterdir()) == []


def test_what_only_looks_like_one_is_left(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / LOCK).touch()
    (temporary / f"{PREFIX}link").symlink_to(temporary / "elsewhere")
    (temporary / f"{PREFIX}no-lock").mkdir()
    assert sweep() == []
    assert (temporary / "elsewhere" / LOCK).exists()
