"""The file of named clients."""

import os
from pathlib import Path

import pytest

from service.config.clients import ClientsInvalid, digest, read_clients

DIGEST = digest(b"a-key-that-only-its-owner-has").hex()


def test_a_client_has_keys_scopes_a_share_and_a_quota(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    path.write_text(
        f"""
        [mobile-app]
        keys = ["first-key", "next-key"]
        share = 2.5
        images_per_second = 100
        burst_images = 300

        [ops]
        sha256 = ["{DIGEST}"]
        scopes = ["read", "change"]
        """
    )
    clients = read_clients(path)
    app, ops = clients["mobile-app"], clients["ops"]
    assert app.scopes == frozenset({"predict"})
    assert (app.share, app.images_per_second, app.burst_images) == (2.5, 100, 300)
    assert app.digests == (digest(b"first-key"), digest(b"next-key"))
    assert ops.scopes == frozenset({"read", "change"})
    assert (ops.share, ops.images_per_second) == (1, None)
    assert ops.digests == (bytes.fromhex(DIGEST),)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "0 clients"),
        ("[app]", "app: Value error, it has neither keys nor sha256"),
        ('[app]\nkeys = ["short"]', "app.keys.0: String should have at least 8"),
        ('[app]\nsha256 = ["secret-digest"]', "app.sha256.0: String should match"),
        ('[app]\nkeys = ["secret-key"]\nscope = ["read"]', "app.scope: Extra inputs"),
        ('[app]\nkeys = ["secret-key"]\nscopes = ["write"]', "app.scopes"),
        ('[app]\nkeys = ["secret-key"]\nshare = 0.5', "app.share: Input should be greater than or equal to 1"),
        ('[app]\nkeys = ["secret-key"]\nimages_per_second = 0', "app.images_per_second"),
        ('[app]\nkeys = ["secret-key"]\n[other]\nkeys = ["secret-key"]', "app and other have one key"),
        ('[admin]\nkeys = ["secret-key"]', "called admin"),
        ('[key-1]\nkeys = ["secret-key"]', "called key-1"),  # as that of TORCHGATE_API_KEYS
        ('["My App"]\nkeys = ["secret-key"]', "client 1 cannot have its name"),
        ('[app]\nkeys = ["secret-1"]\n["My secret"]\nkeys = ["correct-horse"]', "client 2 cannot have its name"),
        ('["My secret"]\nkeys = ["app"]', "client 1.keys.0: String should have at least 8"),
        ('[app]\nkeys = ["correct-horse"]\nsecret-1 = ["x"]', "app.(not shown): Extra inputs"),
        ('[app]\nkeys = [" secret-key"]', "begins or ends with a blank"),
        ('[app]\nkeys = ["secret-key"]\nscopes = []', "app.scopes: "),
        ('[app\nkeys = ["secret-key"]', "no TOML"),
        ("app = 7", "app"),
        (f"app = {'[' * 10_000}", "nested too deeply"),
        ("\n".join(f'[c{n}]\nkeys = ["secret-key-{n}"]' for n in range(201)), "201 clients"),
    ],
)
def test_what_is_wrong_is_named_and_no_key_is_shown(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "clients.toml"
    path.write_text(text)
    with pytest.raises(ClientsInvalid) as caught:
        read_clients(path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_pipe_and_an_endless_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ClientsInvalid, match="pipe: it is not a regular file"):
        read_clients(tmp_path / "pipe")
    (tmp_path / "endless").touch()
    os.truncate(tmp_path / "endless", 2**40)
    with pytest.raises(ClientsInvalid, match="endless: it is larger than"):
        read_clients(tmp_path / "endless")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClientsInvalid, match=r"nowhere\.toml: No such file"):
        read_clients(tmp_path / "nowhere.toml")
