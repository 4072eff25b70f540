import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.cli.gateway import CallFailed
from service.cli.token import find_token
from service.config.environment import env_name
from service.config.settings import Settings, explain


def test_embedded_workers_are_another_server_than_torchserve_at_its_default_address() -> None:
    assert Settings(backend="workers").model_server != Settings(backend="grpc").model_server


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"TORCHGATE_PORT": "70000"}, ["TORCHGATE_PORT", "70000", "65535"]),
        ({"TORCHGATE_PORT": "http"}, ["TORCHGATE_PORT", "http", "integer"]),
        ({"TORCHGATE_BACKEND": "magic"}, ["TORCHGATE_BACKEND", "magic", "grpc", "rest"]),
        ({"TORCHGATE_MAX_BATCH_SIZE": "0"}, ["TORCHGATE_MAX_BATCH_SIZE", "0", "1"]),
        (
            {"TORCHGATE_MAX_IMAGES": "2000"},
            ["TORCHGATE_MAX_IMAGES", "2000", "TORCHGATE_MAX_QUEUE_ITEMS", "1024"],
        ),
        (
            {"TORCHGATE_WORKERS_PER_VERSION": "33"},
            ["TORCHGATE_WORKERS_PER_VERSION=33", "TORCHGATE_MAX_WORKERS_PER_VERSION=32"],
        ),
        (
            {"TORCHGATE_MAX_BUFFERED_BYTES": "60000000"},
            ["TORCHGATE_MAX_BUFFERED_BYTES=60000000", "twice TORCHGATE_MAX_BODY_BYTES=33554432"],
        ),
        ({"TORCHGATE_DRAIN_SECONDS": "inf"}, ["TORCHGATE_DRAIN_SECONDS", "inf", "finite"]),
        ({"TORCHGATE_MAX_BATCH_BYTES": "200000000"}, ["TORCHGATE_MAX_BATCH_BYTES", "200000000", "125829120"]),
        (
            {"TORCHGATE_BACKEND": "workers", "TORCHGATE_WORKER_PYTHON": "/nowhere/python"},
            ["TORCHGATE_WORKER_PYTHON", "/nowhere/python"],
        ),
        ({"TORCHGATE_TRACING_SAMPLE_RATIO": "1.5"}, ["TORCHGATE_TRACING_SAMPLE_RATIO", "1.5", "less than or equal"]),
        *(
            (
                {"TORCHGATE_TRACING": "otlp", "TORCHGATE_TRACING_ENDPOINT": endpoint},
                ["TORCHGATE_TRACING_ENDPOINT", endpoint],
            )
            for endpoint in (
                *("collector:4317", "http://", "grpc://collector:4317", "http://collector:port"),
                *("http://collector:4318/v1/traces", "http://collector:99999"),
            )
        ),
        ({"TORCHGATE_API_KEYS": "long-enough,a,b"}, ["TORCHGATE_API_KEYS=(secret)", "key 2", "at least 8"]),
        ({"TORCHGATE_API_KEYS": ",,,,,,,,"}, ["TORCHGATE_API_KEYS=(secret)", "holds no key"]),
        ({"TORCHGATE_API_KEYS": " " * 8}, ["TORCHGATE_API_KEYS=(secret)", "holds no key"]),
        ({"TORCHGATE_ADMIN_TOKEN_FILE": "/nowhere/token"}, ["TORCHGATE_ADMIN_TOKEN_FILE=/nowhere/token", "No such"]),
        ({"TORCHGATE_DATABASE_URL_FILE": "/dev/zero"}, ["TORCHGATE_DATABASE_URL_FILE=/dev/zero", "not a regular"]),
        (
            {"TORCHGATE_TRACING": "otlp", "TORCHGATE_TRACING_ENDPOINT": "http://me:hidden@collector:4317"},
            ["TORCHGATE_TRACING_ENDPOINT=(not shown", "http://host:port"],
        ),
        (
            {"TORCHGATE_API_KEYS": "long-enough", "TORCHGATE_API_KEYS_FILE": "/nowhere/keys"},
            ["TORCHGATE_API_KEYS_FILE", "TORCHGATE_API_KEYS is set as well"],
        ),
        ({"TORCHGATE_DEADLINE_MS": "90000"}, ["TORCHGATE_DEADLINE_MS", "TORCHGATE_MAX_DEADLINE_MS", "60000"]),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], named: list[str]) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError) as caught:
        Settings()
    text = explain(caught.value)
    for part in named:
        assert part in text, text
    assert "hidden" not in text


def test_secrets_come_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, secret in (
        ("admin_token", "correct-horse"),
        ("api_keys", "first-key, second-key"),
        ("database_url", "sqlite:///"),
    ):
        (tmp_path / name).write_text(f"{secret}\n")
        monkeypatch.setenv(f"{env_name(name)}_FILE", str(tmp_path / name))
    settings = Settings()
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == "correct-horse"
    assert settings.keys == ("first-key", "second-key")
    assert settings.state_url == "sqlite:///"
    (tmp_path / "api_keys").write_text("short\n")
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert explain(caught.value) == (
        "TORCHGATE_API_KEYS=(secret): Value error, key 1 has 5 characters, at least 8 are needed"
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the file is empty"),
        (b"correct-hidden\nnext-hidden\n", "more than one line"),
        (b"correct\x00hidden", "more than one line, or a character"),
        (b"hidden\xff", "no UTF-8"),
        (None, "not a regular file"),
    ],
)
def test_a_secret_is_one_line_of_a_file(tmp_path: Path, content: bytes | None, told: str) -> None:
    """The gateway and the command line read it alike; neither waits for a pipe."""
    path = tmp_path / "token"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    with pytest.raises(ValidationError) as caught:
        Settings(admin_token_file=path)
    with pytest.raises(CallFailed) as failed:
        find_token("http://localhost", {"TORCHGATE_ADMIN_TOKEN_FILE": str(path)})
    for text in (explain(caught.value), str(failed.value)):
        assert text.startswith(f"TORCHGATE_ADMIN_TOKEN_FILE={path}: ")
        assert told in text
        assert "hidden" not in text


def test_tracing_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.config.environment.find_spec", lambda name: None)
    assert Settings(tracing_endpoint="nowhere").tracing == "off"
    with pytest.raises(ValidationError, match=r"TORCHGATE_TRACING=otlp .*the extra 'tracing'"):
        Settings(tracing="otlp")


def test_workers_need_torchserve_and_the_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.config.environment.find_spec", lambda name: None)
    assert Settings(backend="grpc").backend == "grpc"
    assert Settings(backend="workers", worker_python="sh").worker_python == "sh"  # asked when it is started
    with pytest.raises(ValidationError) as caught:
        Settings(backend="workers")
    assert "TORCHGATE_BACKEND=workers" in explain(caught.value)
    assert "TORCHGATE_WORKER_PYTHON" in explain(caught.value)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGATE_PORT", "9000")
    monkeypatch.setenv("TORCHGATE_MODEL_STORE", "/somewhere")
    monkeypatch.setenv("TORCHGATE_DEFAULT_MODEL", "")
    settings = Settings()
    assert (settings.port, settings.model_store, settings.default_model) == (9000, Path("/somewhere"), None)
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]


def test_every_setting_has_a_help_and_its_unit_in_the_name() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        if name.endswith(("_sample", "_threshold")):  # a share and a score have no unit
            continue
        if field.annotation is float or "time" in (field.description or "").lower():
            assert name.endswith(("_ms", "_seconds", "_ratio")), env_name(name)
