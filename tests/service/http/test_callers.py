"""Named callers: scopes, quotas, closed reads, and what the log, metrics and events say of them; strangers."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway import TOKEN, Rig, running_gateway
from tests.service.operator import OLD, change, events
from tests.service.problems import problem_of

pytestmark = pytest.mark.anyio

CLIENTS = """
[app]
keys = ["key-of-the-app"]
images_per_second = 0.01
burst_images = 3

[dashboard]
keys = ["key-of-the-dashboard"]
scopes = ["read"]

[ops]
keys = ["key-of-the-ops"]
scopes = ["change"]
"""
READS = (
    *("/models", "/models/digits", "/models/digits/traffic", "/models/digits/shadows", "/models/digits/quality"),
    *("/models/digits/events", "/models/digits/rollouts", "/metrics", "/status/events"),
)


def with_clients(tmp_path: Path, text: str = CLIENTS) -> dict[str, Any]:
    path = tmp_path / "clients.toml"
    path.write_text(text)
    return {"clients_file": path}


async def predict(rig: Rig, key: str, num_images: int = 1) -> httpx.Response:
    files = [("file", b"class:1")] * num_images
    return await rig.client.post("/predict", files=files, headers={"X-API-Key": key})


async def test_a_quota_is_counted_in_images_and_the_refusal_says_when(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD,), **with_clients(tmp_path)) as rig:
        assert (await predict(rig, "key-of-the-app", 2)).status_code == 200
        refused = await predict(rig, "key-of-the-app", 2)
        assert "quota" in problem_of(refused, 429, "quota_exceeded")["detail"]
        assert 90 <= int(refused.headers["retry-after"]) <= 100
        assert (await predict(rig, "key-of-the-app", 1)).status_code == 200
        problem_of(await predict(rig, "key-of-the-app", 1), 429, "quota_exceeded")
        assert await rig.metric("torchgate_caller_images_total", caller="app") == 3
        assert await rig.metric("torchgate_caller_rejected_total", caller="app", reason="quota") == 2
        assert await rig.metric("torchgate_rejected_total", reason="quota") == 2
        assert len(rig.backend.batches) == 2


async def test_an_address_has_a_quota_where_no_keys_are_set(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD,), quota_images_per_second=1, quota_burst_images=2) as rig:
        assert [(await rig.predict(b"class:1")).status_code for _ in range(3)] == [200, 200, 429]
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=rig.url, transport=transport) as elsewhere:
            answer = await elsewhere.post("/predict", content=b"class:1", headers={"Content-Type": "image/png"})
            assert answer.status_code == 200


async def test_a_key_does_what_its_scopes_say(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path, (OLD,), **with_clients(tmp_path)) as rig:
        problem_of(await predict(rig, "key-of-the-dashboard"), 403, "scope_missing")
        problem_of(await predict(rig, TOKEN), 403, "credentials_wrong")
        del rig.client.headers["authorization"]
        body = {"version": "1.0"}
        app = await change(rig, "PUT", "/labels/stable", body, x_api_key="key-of-the-app")
        assert "app" in problem_of(app, 403, "scope_missing")["detail"]
        done = await change(rig, "PUT", "/labels/stable", body, authorization="Bearer key-of-the-ops", x_actor="anna")
        assert done.status_code == 200
        assert [(e["actor"], e["outcome"]) for e in await events(rig)][1:] == [("ops (anna)", "done")]
        assert (await predict(rig, "key-of-the-app")).status_code == 200
        assert await rig.metric("torchgate_credentials_refused_total", reason="scope") == 2
        page = (await rig.client.get("/metrics")).text
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith('{"time"')]
    callers = [line.get("caller") for line in lines if line["route"] == "/predict"]
    assert callers == [None, None, "app"]
    assert "ops (anna)" in [line.get("caller") for line in lines]
    assert "key-of" not in page + json.dumps(lines)


async def test_reads_are_open_unless_the_settings_close_them(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD,), **with_clients(tmp_path)) as rig:
        del rig.client.headers["authorization"]
        for path in READS[:-1]:
            assert (await rig.client.get(path)).status_code == 200, path
    async with running_gateway(
        tmp_path, (OLD,), reads_need_key=True, wait_until_ready=False, **with_clients(tmp_path)
    ) as rig:
        await rig.until_ready()
        async with httpx.AsyncClient(base_url=rig.url) as stranger:
            for path in READS:
                problem_of(await stranger.get(path), 401, "credentials_missing")
                problem_of(await stranger.get(path, headers={"X-API-Key": "key-of-the-app"}), 403, "scope_missing")
                for headers in ({"X-API-Key": "key-of-the-dashboard"}, {"Authorization": f"Bearer {TOKEN}"}):
                    async with stranger.stream("GET", path, headers=headers) as answer:
                        assert answer.status_code == 200, path
            for path in ("/healthz", "/readyz", "/status", "/docs"):
                assert (await stranger.get(path)).status_code == 200, path


async def test_the_file_is_read_again_when_it_changes_and_a_wrong_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("service.admin.file_watch.LOOK_SECONDS", 0.01)
    options = with_clients(tmp_path)
    caplog.set_level("INFO")

    async def written(text: str, told: str) -> None:
        options["clients_file"].write_text(text)
        async with asyncio.timeout(10):
            while told not in caplog.text:
                await asyncio.sleep(0.01)
        caplog.clear()

    async with running_gateway(tmp_path, (OLD,), **options) as rig:
        assert (await predict(rig, "key-of-the-app", 3)).status_code == 200
        await written(CLIENTS.replace('["key-of-the-ops"]', '["new-key-of-the-ops"]'), "clients.toml was read again: 3")
        del rig.client.headers["authorization"]
        allowed = await rig.client.post("/models/digits/rollback", headers={"X-API-Key": "new-key-of-the-ops"})
        problem_of(allowed, 409, "nothing_earlier")
        problem_of(await predict(rig, "key-of-the-app"), 429, "quota_exceeded")  # the same client, and its quota
        await written("[app]", "the clients stay as they were")
        problem_of(await predict(rig, "key-of-the-app"), 429, "quota_exceeded")
        await written('[other]\nkeys = ["key-of-another"]', "clients.toml was read again: 1")
        assert (await predict(rig, "key-of-another")).status_code == 200
        problem_of(await predict(rig, "key-of-the-app"), 403, "credentials_wrong")
        assert 'caller="app"' not in (await rig.client.get("/metrics")).text


async def test_strangers_fill_neither_the_state_nor_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_gateway(tmp_path, (OLD,)) as rig:
        before = await events(rig)
        async with httpx.AsyncClient(base_url=rig.url) as stranger:
            for _ in range(100):
                path = f"/models/digits/labels/{'x' * 30}?reason={'y' * 4000}"
                problem_of(await stranger.put(path, json={"version": "1.0"}), 401, "credentials_missing")
        assert await events(rig) == before
        assert await rig.metric("torchgate_credentials_refused_total", reason="missing") == 100
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert 1 <= len(lines) <= 15
    assert max(map(len, lines)) <= 200


async def test_refusals_of_known_operators_are_short_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_gateway(tmp_path, (OLD,)) as rig:
        body = {"weights": {"z" * 20_000: 100}}
        for _ in range(100):
            assert (await change(rig, "PUT", "/traffic", body)).status_code in {404, 422}
        assert len([e for e in await events(rig) if e["outcome"] == "refused"]) == 60
    lines = [record.getMessage() for record in caplog.records if "is refused" in record.getMessage()]
    assert len(lines) == 60
    assert max(map(len, lines)) <= 500


async def test_guesses_at_the_token_have_to_wait_and_others_do_not(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD,), **with_clients(tmp_path)) as rig:

        async def guess(**headers: str) -> httpx.Response:
            return await change(rig, "POST", "/rollback", if_match="", **headers)

        assert (await predict(rig, "key-of-the-app")).status_code == 200
        for number in range(6):  # a right key beside the guess makes it no better
            wrong = await guess(authorization=f"Bearer guess-{number}", x_api_key="key-of-the-app")
            problem_of(wrong, 403, "credentials_wrong")
        waits = await guess(authorization=f"Bearer {TOKEN}")
        problem_of(waits, 429, "credentials_backoff")
        assert int(waits.headers["retry-after"]) == 1
        assert (await predict(rig, "key-of-the-app")).status_code == 200, "it was at work before the guesses"
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(base_url=rig.url, transport=transport) as elsewhere:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            answer = await elsewhere.post("/models/digits/rollback", headers=headers)
            problem_of(answer, 409, "nothing_earlier")
        assert await rig.metric("torchgate_credentials_refused_total", reason="backoff") == 1
