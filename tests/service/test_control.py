"""Versions, traffic and labels are changed over HTTP; what is refused changes nothing, and the log tells both."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.backend import Target
from service.errors import BackendFailed
from tests.gateway import Rig, running_gateway
from tests.stores import make_store

pytestmark = pytest.mark.anyio

OLD, NEW = ("digits", "1.0", "fp32"), ("digits", "1.1", "fp32")


async def change(rig: Rig, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    """Send a change that is based on what is there now."""
    if "if_match" not in headers:
        headers["if_match"] = (await rig.client.get("/models/digits/traffic")).headers["etag"]
    headers = {name.replace("_", "-"): value for name, value in headers.items() if value}
    return await rig.client.request(method, f"/models/digits{path}", json=body, headers=headers)


async def events(rig: Rig) -> list[dict[str, Any]]:
    """Return the log, the oldest first."""
    found: list[dict[str, Any]] = (await rig.client.get("/models/digits/events")).json()["events"]
    return found[::-1]


async def two_ready(rig: Rig) -> None:
    async with asyncio.timeout(10):
        while set((await rig.states()).values()) != {"ready"}:
            await asyncio.sleep(0.01)


async def shares(rig: Rig, num_requests: int, **request: Any) -> Counter[str]:
    answers = [await rig.predict(b"class:1", **request) for _ in range(num_requests)]
    assert {answer.status_code for answer in answers} == {200}
    for answer in answers:
        assert answer.json()["version"] == answer.headers["x-model-version"]
    return Counter(answer.json()["version"] for answer in answers)


async def test_traffic_is_divided_by_weight_and_labels_and_names_go_before(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await two_ready(rig)
        assert (await rig.client.get("/models/digits/traffic")).json()["weights"] == {"1.1": 100}
        answer = await change(rig, "PUT", "/traffic", {"weights": {"1.0": 90, "1.1": 10}})
        assert answer.status_code == 200, answer.text
        assert answer.json()["weights"] == {"1.0": 90, "1.1": 10}
        assert await shares(rig, 200) == {"1.0": 180, "1.1": 20}
        await change(rig, "PUT", "/labels/canary", {"version": "1.1"})
        assert await shares(rig, 5, params={"label": "canary"}) == {"1.1": 5}
        assert await shares(rig, 5, params={"version": "1.0"}) == {"1.0": 5}
        both = await rig.predict(b"class:1", params={"label": "canary", "version": "1.0"})
        assert (both.status_code, both.json()["code"]) == (422, "parameter_invalid")
        missing = await rig.predict(b"class:1", params={"label": "stable"})
        assert (missing.status_code, missing.json()["code"]) == (404, "label_not_found")
        shown = (await rig.client.get("/models/digits")).json()
        assert [(v["version"], v["weight"], v["labels"], v["default"]) for v in shown["versions"]] == [
            ("1.0", 90, [], True),
            ("1.1", 10, ["canary"], False),
        ]


async def test_requests_with_one_key_stay_together(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await two_ready(rig)
        await change(rig, "PUT", "/traffic", {"weights": {"1.0": 50, "1.1": 50}})
        for number in range(20):
            assert len(await shares(rig, 3, headers={"X-Routing-Key": f"user-{number}"})) == 1
        await change(rig, "PUT", "/traffic", {"weights": {"1.0": 50, "1.1": 50}, "sticky_header": None})
        assert len(await shares(rig, 100, headers={"X-Routing-Key": "user-1"})) == 2


async def test_a_version_that_is_not_ready_gets_no_traffic(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await two_ready(rig)
        await change(rig, "PUT", "/traffic", {"weights": {"1.0": 50, "1.1": 50}})
        rig.control.num_ready_of[Target("digits", "1.1")] = 0
        async with asyncio.timeout(10):
            while (await rig.states())["1.1"] != "unavailable":
                await asyncio.sleep(0.01)
        assert await shares(rig, 40) == {"1.0": 40}
        assert (await rig.client.get("/readyz")).status_code == 200


async def test_a_version_is_registered_scaled_and_unregistered(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW)) as rig:  # the newest release alone
        assert await rig.states() == {"1.1": "ready"}
        answer = await change(rig, "POST", "/versions", {"file": "digits-1.0.mar", "num_workers": 2}, if_match="")
        assert (answer.status_code, answer.json()["state"], answer.json()["weight"]) == (201, "ready", 0)
        assert rig.control.registered[Target("digits", "1.0")] == 2
        assert await shares(rig, 3) == {"1.1": 3}
        assert await shares(rig, 3, params={"version": "1.0"}) == {"1.0": 3}
        answer = await change(rig, "PATCH", "/versions/1.0", {"num_workers": 3}, if_match="")
        assert (answer.status_code, answer.json()["num_workers"]) == (200, 3)
        assert rig.control.registered[Target("digits", "1.0")] == 3
        again = await change(rig, "POST", "/versions", {"file": "digits-1.0.mar"}, if_match="")
        assert (again.status_code, again.json()["code"]) == (409, "version_exists")
        assert (await change(rig, "DELETE", "/versions/1.0", if_match="")).status_code == 204
        assert Target("digits", "1.0") not in rig.control.registered
        assert await rig.states() == {"1.1": "ready"}
        assert await rig.metric("torchgate_model_ready", version="1.0") == 0
        gone = await rig.predict(b"class:1", params={"version": "1.0"})
        assert (gone.status_code, gone.json()["code"]) == (404, "version_not_found")
        log = await events(rig)
    assert [(e["action"], e["outcome"]) for e in log] == [
        ("notice", "done"),
        ("register", "done"),
        ("scale", "done"),
        ("register", "refused"),
        ("unregister", "done"),
    ]


async def test_what_a_version_has_is_answered_before_it_goes(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await two_ready(rig)
        rig.backend.hold()
        running = asyncio.create_task(rig.predict(b"class:0", params={"version": "1.0"}))
        await rig.backend.batches_arrived(1)
        waiting = asyncio.create_task(rig.predict(b"class:2", params={"version": "1.0"}))
        await rig.until("torchgate_queue_depth", 1, version="1.0")
        going = asyncio.create_task(change(rig, "DELETE", "/versions/1.0", if_match=""))
        async with asyncio.timeout(10):
            while (await rig.states())["1.0"] != "draining":
                await asyncio.sleep(0.01)
        refused = await rig.predict(b"class:0", params={"version": "1.0"})
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        assert Target("digits", "1.0") in rig.control.registered
        rig.backend.release()
        assert {(await running).status_code, (await waiting).status_code} == {200}
        assert (await going).status_code == 204
        assert Target("digits", "1.0") not in rig.control.registered


async def test_a_drain_waits_for_a_body_that_is_on_its_way(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await two_ready(rig)
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        head = "POST /predict?version=1.0 HTTP/1.1", "Host: localhost", "Content-Type: image/png", "Content-Length: 7"
        writer.write("\r\n".join([*head, "", ""]).encode())
        await rig.until("torchgate_http_requests_in_progress", 2)  # it, and the one that asks
        going = asyncio.create_task(change(rig, "DELETE", "/versions/1.0", if_match=""))
        async with asyncio.timeout(10):
            while (await rig.states())["1.0"] != "draining":
                await asyncio.sleep(0.01)
        writer.write(b"class:1")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert (await going).status_code == 204


async def test_a_rollback_goes_to_who_had_everything_last(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await two_ready(rig)
        nothing = await change(rig, "POST", "/rollback", if_match="")
        assert (nothing.status_code, nothing.json()["code"]) == (409, "nothing_earlier")
        for weights in ({"1.0": 90, "1.1": 10}, {"1.0": 50, "1.1": 50}):
            await change(rig, "PUT", "/traffic", {"weights": weights})
        back = await change(rig, "POST", "/rollback", if_match="")
        assert back.json()["weights"] == {"1.1": 100}
        await change(rig, "PUT", "/traffic", {"weights": {"1.0": 100}})
        assert (await change(rig, "POST", "/rollback", if_match="")).json()["weights"] == {"1.1": 100}
        # Once more, to be sure, does not lead to what was just left.
        again = await change(rig, "POST", "/rollback", if_match="")
        assert (again.status_code, again.json()["code"]) == (409, "nothing_earlier")


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
    ("PUT", "/traffic", {"weights": {"1.1": 100}}, {"origin": "http://elsewhere"}, 403, "changes_closed", "web page"),
    ("PUT", "/traffic", {"weights": {"1.1": 100}}, {"host": "evil.test"}, 403, "changes_closed", "evil.test"),
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
        async with asyncio.timeout(10):
            while (await rig.states())["1.0"] != "failed":
                await asyncio.sleep(0.01)
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
        assert [e["outcome"] for e in await events(rig)] == ["done", "refused", "refused", "refused"]
        good = await change(rig, "POST", "/versions", {"file": path.name}, if_match="")
        assert good.status_code == 201


async def test_an_admin_token_is_asked_for_and_keys_for_predictions(tmp_path: Path) -> None:
    options: dict[str, Any] = {"admin_token": "correct-horse", "api_keys": "first-key,second-key"}
    async with running_gateway(tmp_path, (OLD,), **options) as rig:
        body = {"version": "1.0"}
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
            ("unknown", "refused"),
            ("unknown", "refused"),
            ("admin (anna@desk)", "done"),
        ]
        assert "horse" not in json.dumps(log)
        assert (await rig.predict(b"class:1")).status_code == 401
        assert (await rig.predict(b"class:1", headers={"X-API-Key": "third-key"})).status_code == 403
        assert (await rig.predict(b"class:1", headers={"X-API-Key": "second-key"})).status_code == 200
        assert (await rig.predict(b"class:1", headers={"Authorization": "Bearer first-key"})).status_code == 200


async def test_nobody_changes_anything_without_a_token_on_an_open_address(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD,), host="0.0.0.0") as rig:  # noqa: S104 - the setting; it listens on loopback
        closed = await change(rig, "PUT", "/labels/stable", {"version": "1.0"})
        assert (closed.status_code, closed.json()["code"]) == (403, "changes_closed")
        assert "TORCHGATE_ADMIN_TOKEN" in closed.json()["detail"]


async def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await two_ready(rig)
        await change(rig, "PUT", "/traffic", {"weights": {"1.0": 75, "1.1": 25}})
        await change(rig, "PUT", "/labels/canary", {"version": "1.1"})
        keys = [f"user-{number}" for number in range(50)]
        before = [await shares(rig, 1, headers={"X-Routing-Key": key}) for key in keys]
        state = (await rig.client.get("/models/digits/traffic")).json()
        log = await events(rig)
    again: dict[str, Any] = {"model_store": tmp_path / "store", "model_store_policy": "all"}
    async with running_gateway(tmp_path, (), control=rig.control, **again) as rig:
        await two_ready(rig)
        assert (await rig.client.get("/models/digits/traffic")).json() == state
        assert [await shares(rig, 1, headers={"X-Routing-Key": key}) for key in keys] == before
        assert await events(rig) == log


async def test_new_archives_are_noticed_and_get_no_traffic(tmp_path: Path) -> None:
    store = tmp_path / "store"
    options: dict[str, Any] = {"model_store": store, "model_store_poll_seconds": 0.02}
    contracts = make_store(store, (OLD,))
    async with running_gateway(tmp_path, (), wait_until_ready=False, **options) as rig:
        rig.control.contracts.update(contracts)
        await rig.until_ready()
        rig.control.contracts.update(make_store(store, (OLD, NEW)))
        async with asyncio.timeout(10):
            while await rig.states() != {"1.0": "ready", "1.1": "ready"}:
                await asyncio.sleep(0.01)
        assert await shares(rig, 5) == {"1.0": 5}
        assert (await change(rig, "DELETE", "/versions/1.1", if_match="")).status_code == 204
        await asyncio.sleep(0.1)  # several looks at the store
        assert await rig.states() == {"1.0": "ready"}


async def test_nothing_is_registered_by_itself_where_that_is_asked_for(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model_store_policy": "specific"}
    async with running_gateway(tmp_path, (OLD, NEW), wait_until_ready=False, **options) as rig:
        await rig.until_reason("TORCHGATE_MODEL_STORE_POLICY=specific")
        answer = await rig.client.post("/models/digits/versions", json={"file": "digits-1.0.mar"})
        assert answer.status_code == 201, answer.text
        assert await shares(rig, 2) == {"1.0": 2}


async def test_bodies_of_changes_are_bounded(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD,)) as rig:
        huge = await change(rig, "PUT", "/traffic", {"weights": {"x" * 100_000: 100}})
        assert (huge.status_code, huge.json()["code"]) == (413, "body_too_large")
        odd = await change(rig, "PUT", "/traffic", {"weights": {"1.0": "many"}})
        assert (odd.status_code, odd.json()["code"]) == (422, "parameter_invalid")
        unknown = await change(rig, "PUT", "/traffic", {"weights": {"1.0": 100}, "wieghts": {}})
        assert unknown.status_code == 422
