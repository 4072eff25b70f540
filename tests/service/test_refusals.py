"""What is refused changes nothing, and the log tells of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.domain.backend import Target
from service.errors.gateway import BackendFailed
from tests.gateway import TOKEN, running_gateway
from tests.service.operator import NEW, OLD, change, events
from tests.stores import make_store

pytestmark = pytest.mark.anyio


REFUSALS = [
    ("PUT", "/traffic", {"weights": {"1.1": 99}}, {}, 422, "traffic_invalid", "sum to 99"),
    ("PUT", "/traffic", {"weights": {"7.0": 100}}, {}, 404, "version_not_found", "7.0"),
    ("PUT", "/traffic", {"weights": {"1.1": 100}}, {"if_match": '"77"'}, 412, "revision_stale", "77"),
    ("PUT", "/traffic", {"weights": {"1.1": 100}}, {"if_match": ""}, 428, "revision_missing", "If-Match"),
    ("PUT", "/traffic", {"weights": {"1.1": 100}}, {"if_match": "7"}, 422, "parameter_invalid", "ETag"),
    ("PUT", "/labels/canary", {"version": "1.0"}, {}, 409, "version_not_ready", "failed"),
    ("PUT", "/labels/canary", {"version": "7.0"}, {}, 404, "version_not_found", "7.0"),
    ("DELETE", "/labels/canary", None, {}, 404, "label_not_found", "canary"),
    ("DELETE", "/versions/1.1", None, {}, 409, "version_in_use", "100 % of the traffic"),
    ("DELETE", "/versions/7.0", None, {}, 404, "version_not_found", "7.0"),
    ("PATCH", "/versions/1.0", {"num_workers": 2}, {}, 409, "version_not_ready", "failed"),
    ("POST", "/versions", {"file": "digits-7.0.mar"}, {}, 404, "archive_not_found", "digits-1.0.mar"),
    ("PUT", "/traffic", {"weights": {"1.1": "all"}}, {}, 422, "parameter_invalid", "weights"),
    ("POST", "/rollback", None, {}, 409, "nothing_earlier", "digits"),
]


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "code", "named"), REFUSALS)
async def test_what_is_refused_changes_nothing_and_is_logged(
    tmp_path: Path, method: str, path: str, body: Any, headers: dict[str, str], status: int, code: str, named: str
) -> None:
    store = tmp_path / "store"
    contracts = make_store(store, (OLD, NEW))
    (store / "digits-1.0.mar").write_bytes(b"tampered")
    options: dict[str, Any] = {"model_store": store, "model_store_policy": "all"}
    async with running_gateway(tmp_path, (), wait_until_ready=False, **options) as rig:
        rig.control.contracts.update(contracts)
        await rig.until_ready()
        await rig.until_state("1.0", "failed")
        before = (await rig.client.get("/models/digits/traffic")).json()
        answer = await change(rig, method, path, body, **headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert named in answer.json()["detail"]
        assert (await rig.client.get("/models/digits/traffic")).json() == before
        last = (await events(rig))[-1]
    assert (last["outcome"], last["detail"].split(":")[0]) == ("refused", code)
    assert last["before"] is None


async def test_an_archive_that_is_not_good_is_not_registered(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_store(store, (OLD, NEW))
    path = store / "digits-1.0.mar"
    whole = path.read_bytes()
    async with running_gateway(tmp_path, (), wait_until_ready=False, model_store=store) as rig:
        rig.control.contracts.update(make_store(store, (OLD, NEW)))
        whole = path.read_bytes()
        await rig.until_ready()
        path.write_bytes(b"tampered")
        tampered = await change(rig, "POST", "/versions", {"file": path.name}, if_match="")
        assert (tampered.status_code, tampered.json()["code"]) == (422, "archive_refused")
        assert "sha256" in tampered.json()["detail"]
        path.write_bytes(whole)
        rig.backend.wrong_probabilities = True
        unlike = await change(rig, "POST", "/versions", {"file": path.name}, if_match="")
        assert (unlike.status_code, unlike.json()["code"]) == (422, "archive_refused")
        assert "self-check" in unlike.json()["detail"]
        assert Target("digits", "1.0") not in rig.control.registered
        rig.backend.wrong_probabilities = False
        rig.control.load_fails_with = BackendFailed("HTTP 500: workers died")
        fails = await change(rig, "POST", "/versions", {"file": path.name}, if_match="")
        assert (fails.status_code, fails.json()["code"]) == (422, "archive_refused")
        rig.control.load_fails_with = None
        assert await rig.states() == {"1.1": "ready"}
        seen = await events(rig)
        assert [e["outcome"] for e in seen if e["action"] == "register"] == ["done", "refused"] * 3
        assert [e["outcome"] for e in seen if e["action"] == "load"] == ["refused"]  # by the gateway: other bytes
        good = await change(rig, "POST", "/versions", {"file": path.name}, if_match="")
        assert good.status_code == 201


async def test_an_admin_token_is_asked_for_and_keys_for_predictions(tmp_path: Path) -> None:
    options: dict[str, Any] = {"admin_token": "correct-horse", "api_keys": "first-key,second-key"}
    async with running_gateway(tmp_path, (OLD,), **options) as rig:
        body = {"version": "1.0"}
        del rig.client.headers["authorization"]
        missing = await change(rig, "PUT", "/labels/stable", body)
        wrong = await change(rig, "PUT", "/labels/stable", body, authorization="Bearer wrong-horse")
        right = await change(
            rig, "PUT", "/labels/stable", body, authorization="Bearer correct-horse", x_actor="anna@desk"
        )
        assert (missing.status_code, missing.json()["code"]) == (401, "credentials_missing")
        assert missing.headers["www-authenticate"] == "Bearer"
        assert (wrong.status_code, wrong.json()["code"]) == (403, "credentials_wrong")
        assert (right.status_code, right.json()["labels"]) == (200, {"stable": "1.0"})
        log = await events(rig)
        assert [(e["actor"], e["outcome"]) for e in log[1:]] == [
            ("admin (anna@desk)", "done"),
        ]
        assert "horse" not in json.dumps(log)
        assert (await rig.predict(b"class:1")).status_code == 401
        assert (await rig.predict(b"class:1", headers={"X-API-Key": "third-key"})).status_code == 403
        assert (await rig.predict(b"class:1", headers={"X-API-Key": "second-key"})).status_code == 200
        assert (await rig.predict(b"class:1", headers={"Authorization": "Bearer first-key"})).status_code == 200


async def test_nobody_changes_anything_without_a_token_not_even_from_this_machine(tmp_path: Path) -> None:
    """What a proxy on this machine passes on looks just like this: loopback's address, its name, no Origin."""
    for token in (TOKEN, None):
        async with running_gateway(tmp_path, (OLD,), admin_token=token) as rig:
            del rig.client.headers["authorization"]
            closed = await change(rig, "PUT", "/labels/stable", {"version": "1.0"})
            assert (closed.status_code, closed.json()["code"]) == (401, "credentials_missing")
            assert "torchgate token" in closed.json()["detail"]
            guessed = await change(rig, "PUT", "/labels/stable", {"version": "1.0"}, authorization="Bearer guessed")
            assert guessed.status_code == 403


async def test_bodies_of_changes_are_bounded(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD,)) as rig:
        huge = await change(rig, "PUT", "/traffic", {"weights": {"x" * 100_000: 100}})
        assert (huge.status_code, huge.json()["code"]) == (413, "body_too_large")
        odd = await change(rig, "PUT", "/traffic", {"weights": {"1.0": "many"}})
        assert (odd.status_code, odd.json()["code"]) == (422, "parameter_invalid")
        unknown = await change(rig, "PUT", "/traffic", {"weights": {"1.0": 100}, "wieghts": {}})
        assert unknown.status_code == 422
