"""Who may read the details of failures: readers get paths, hosts and exceptions' text; others what is wrong by kind."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.errors.gateway import BackendError, BackendFailed, BackendUnavailable, WorkerDied
from service.errors.reason import DETAILS
from service.serving.model_version import ModelVersion
from tests.fake_backend import FakeBackend, FakeControl
from tests.gateway import AUTHORIZATION, Rig, running_gateway
from tests.service.operator import OLD
from tests.service.problems import problem_of

pytestmark = pytest.mark.anyio

SECRET = "/srv/store/digits.mar on host-7: [Errno 13] Permission denied"
CLIENTS = """
[app]
keys = ["key-of-the-app"]

[dashboard]
keys = ["key-of-the-dashboard"]
scopes = ["read"]

[all]
keys = ["key-of-both-scopes"]
scopes = ["predict", "read"]
"""
STRANGERS: tuple[dict[str, str], ...] = ({}, {"X-API-Key": "key-of-the-app"}, {"Authorization": "Bearer a-guess"})
READERS: tuple[dict[str, str], ...] = (AUTHORIZATION, {"X-API-Key": "key-of-the-dashboard"})


def failing_load(_: FakeBackend, control: FakeControl) -> None:
    control.load_fails_with = BackendFailed(SECRET)


def with_clients(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "clients.toml"
    path.write_text(CLIENTS)
    return {"clients_file": path}


async def first_look(client: httpx.AsyncClient, headers: dict[str, str]) -> dict[str, Any]:
    """Return what the status page is told first."""
    async with client.stream("GET", "/status/events", headers=headers) as answer:
        async for line in answer.aiter_lines():
            if line.startswith('data: {"point"'):
                now: dict[str, Any] = json.loads(line.removeprefix("data: "))["now"]
                return now
    raise AssertionError("the stream ended")


async def texts(client: httpx.AsyncClient, headers: dict[str, str]) -> dict[str, str]:
    """Return what a caller is told of the version that does not load, by the place that tells it."""
    ready = problem_of(await client.get("/readyz", headers=headers), 503, "not_ready")
    models = (await client.get("/models", headers=headers)).json()["models"]
    model = (await client.get("/models/digits", headers=headers)).json()
    return {
        "/readyz": ready["detail"],
        "/models": models[0]["versions"][0]["reason"],
        "/models/digits": model["versions"][0]["reason"],
    }


async def texts_of_the_page(client: httpx.AsyncClient, headers: dict[str, str]) -> dict[str, str]:
    """Return the same of the status page, which takes up to a second."""
    now = await first_look(client, headers)
    return {"a version": now["versions"][0]["reason"], "the gateway": now["gateway"]["waiting_for"]}


def all_of(*told: dict[str, str]) -> list[tuple[str, str]]:
    return [each for known in told for each in known.items()]


async def test_why_a_version_does_not_load_is_for_readers_and_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It stays failed while we look.
    monkeypatch.setattr(ModelVersion, "is_retry_due", property(lambda version: version.error is None))
    options = {"prepare": failing_load, "wait_until_ready": False, **with_clients(tmp_path)}
    async with running_gateway(tmp_path, (OLD,), **options) as rig, httpx.AsyncClient(base_url=rig.url) as anybody:
        await rig.until_state("1.0", "failed")
        await rig.until_reason(SECRET)
        told = [await texts(anybody, headers) for headers in STRANGERS]
        for place, text in all_of(*told, await texts_of_the_page(anybody, {})):
            assert SECRET not in text, place
            assert text.removesuffix(".").endswith(f"digits 1.0 is failed; {DETAILS}"), place
        told = [await texts(anybody, headers) for headers in READERS]
        for place, text in all_of(*told, await texts_of_the_page(anybody, AUTHORIZATION)):
            assert SECRET in text, place
        assert await rig.metric("torchgate_credentials_refused_total", reason="wrong") == 3  # the guesses
        assert await rig.metric("torchgate_credentials_refused_total", reason="scope") == 0
    assert f"digits 1.0 is failed: The model server failed: {SECRET}" in caplog.text


async def predict(rig: Rig, key: str) -> httpx.Response:
    return await rig.predict(b"class:1", headers={"X-API-Key": key, "Authorization": "Bearer of-a-proxy"})


@pytest.mark.parametrize(
    ("error", "public"),
    [
        (BackendUnavailable(SECRET), "The model server is unavailable"),
        (BackendFailed(SECRET), "The model server failed"),
        (WorkerDied(SECRET), "The worker died while it worked on this"),
    ],
)
async def test_why_a_prediction_failed_is_for_readers_and_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], error: BackendError, public: str
) -> None:
    async with running_gateway(tmp_path, (OLD,), **with_clients(tmp_path)) as rig:
        rig.backend.fails_with = error
        told = problem_of(await predict(rig, "key-of-the-app"), error.status, error.code)
        assert told["detail"] == f"{public}; {DETAILS}."
        whole = problem_of(await predict(rig, "key-of-both-scopes"), error.status, error.code)
        assert whole["detail"] == str(error)
        assert await rig.metric("torchgate_credentials_refused_total", reason="wrong") == 0  # in an outage, many come
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith('{"time"')]
    said = {line["request_id"]: line.get("error") for line in lines if line["route"] == "/predict"}
    assert said == {told["request_id"]: str(error), whole["request_id"]: str(error)}


async def test_events_and_the_database_tell_their_details_to_readers(tmp_path: Path) -> None:
    state = tmp_path / "state.db"
    url = f"sqlite:///{state}"
    async with (
        running_gateway(tmp_path, (OLD,), database_url=url) as rig,
        httpx.AsyncClient(base_url=rig.url) as anybody,
    ):
        answer = await rig.client.delete("/models/digits/versions/1.0")
        detail = problem_of(answer, 409, "version_in_use")["detail"]
        (whole, *_) = (await rig.client.get("/models/digits/events")).json()["events"]
        (told, *_) = (await anybody.get("/models/digits/events")).json()["events"]
        assert detail in whole["detail"]
        assert whole["gateway"]
        assert told == {**whole, "gateway": "", "detail": DETAILS}
        with closing(sqlite3.connect(state)) as connection:
            connection.execute("DROP TABLE torchgate_events")
            connection.commit()
        refused = problem_of(await anybody.get("/models/digits/events"), 503, "state_unavailable")
        assert refused["detail"] == f"The state's database is unavailable; {DETAILS}."
        refused = problem_of(await rig.client.get("/models/digits/events"), 503, "state_unavailable")
        assert "no such table: torchgate_events" in refused["detail"]
