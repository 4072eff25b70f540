"""The file with a gateway's own admin token."""

import os
from pathlib import Path

import pytest

from service.config.token_file import TokenFile, TokenFileUnsafe


def test_only_its_owner_reads_it_and_it_goes_with_the_gateway(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "run" / "torchgate", 8000)
    token = file.token(is_taking_over=False)
    assert file.read() is None
    with file.holding(token):
        assert file.read() == token
        assert file.path.stat().st_mode & 0o777 == 0o600
        assert file.path.parent.stat().st_mode & 0o777 == 0o700
        assert [path.name for path in file.path.parent.iterdir()] == ["admin-8000.token"]
        assert TokenFile(tmp_path / "run" / "torchgate", 8001).read() is None
    assert list(file.path.parent.iterdir()) == []


def test_a_gateway_that_takes_over_the_port_keeps_the_token_and_the_file(tmp_path: Path) -> None:
    old, new = TokenFile(tmp_path, 8000), TokenFile(tmp_path, 8000)
    token = old.token(is_taking_over=False)
    with old.holding(token):
        assert new.token(is_taking_over=True) == token
        taken_over = new.holding(token)
        taken_over.__enter__()
    assert new.read() == token, "the old one's end left the new one's file"
    taken_over.__exit__(None, None, None)
    assert new.read() is None


def test_the_token_of_a_gateway_that_was_killed_is_not_used_again(tmp_path: Path) -> None:
    killed, new = TokenFile(tmp_path, 8000), TokenFile(tmp_path, 8000)
    killed.holding("known-to-who-had-the-port").__enter__()
    token = new.token(is_taking_over=False)
    assert token != "known-to-who-had-the-port"
    with new.holding(token):
        assert new.read() == token


@pytest.mark.parametrize("fault", ["readable", "link", "folder", "pipe"])
def test_a_file_that_others_can_read_or_have_put_there_is_not_used(tmp_path: Path, fault: str) -> None:
    file = TokenFile(tmp_path, 8000)
    match fault:
        case "readable":
            file.path.write_text("known-to-others")
            file.path.chmod(0o644)
        case "link":
            (tmp_path / "elsewhere").write_text("known-to-others")
            file.path.symlink_to(tmp_path / "elsewhere")
        case "folder":
            file.path.mkdir()
        case "pipe":
            os.mkfifo(file.path)
    with pytest.raises((TokenFileUnsafe, OSError)):
        file.read()
    assert file.token(is_taking_over=True) != "known-to-others"
    if fault != "folder":
        with file.holding("secret-of-ours"):
            assert file.read() == "secret-of-ours"


def test_a_disk_that_is_full_does_not_stop_the_gateway(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with TokenFile(tmp_path / "file", 8000).holding("secret-of-ours"):
        assert "nobody knows the admin token" in caplog.text


def test_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert TokenFile(None, 1).path == tmp_path / "torchgate" / "admin-1.token"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert TokenFile(None, 1).path == tmp_path / ".local" / "state" / "torchgate" / "admin-1.token"
